"""Links that pages do not spell out: in files that they include, to sources, and of names in `code`."""

import os
import re
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import download_reference, pending_xref

import jaxbo

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\[([^]]*)\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")
#: Files that a page includes, and the page.
INCLUDED = {
    "README.md": "docs/index.md",
    "CHANGELOG.md": "docs/changelog.md",
    "CONTRIBUTING.md": "docs/contributing.md",
    "federation/README.md": "docs/guide.md",
}
#: Packages below `jaxbo` whose modules pages name without it.
PACKAGES = ("kernels.", "privacy.", "domains.", "objectives.", "algos.", "runs.", "federation.")
#: Public names that are fields and arguments elsewhere: without `jaxbo.` they are no links.
FIELDS = {"best", "summary", "objectives", "functions"}


def of_included(app, path, page, content):
    """An event of Sphinx: links in an included file start at that file; on the page, at the page.

    A folder has no page, so its name is no link. `content` is a list of a single text, changed in place.
    """
    folder, source = Path(app.srcdir, path).parent, Path(app.env.doc2path(page)).parent

    def moved(match):
        text, target, anchor = match.groups("")
        file = os.path.relpath(folder / target, ROOT)
        if (ROOT / file).is_dir():
            return f"`{file}`"
        return f"[{text}]({os.path.relpath(ROOT / INCLUDED.get(file, file), source)}{anchor})"

    content[:] = [LINK.sub(moved, text) for text in content]


def of_pictures(app, document, page):
    """An event of Sphinx: a picture leads to itself, so that it can be looked at on a phone.

    Thumbnails of the gallery lead to its pages already. The builder lists a page's pictures after this
    event, so the names of their copies are those of the environment.
    """
    for image in list(document.findall(nodes.image)):
        leads = isinstance(image.parent, nodes.reference) or "/thumb/" in image["uri"]
        if image["uri"] in app.env.images and not leads:
            _, name = app.env.images[image["uri"]]
            to = f"{'../' * page.count('/')}_images/{name}"
            link = nodes.reference("", "", refuri=to, internal=True)
            image.replace_self(link)
            link += image


def of_sources(app, document, page):
    """An event of Sphinx: a module of jaxbo is shown, and not downloaded."""
    for link in list(document.findall(download_reference)):
        file = os.path.relpath(Path(app.env.doc2path(page)).parent / link["reftarget"], ROOT)
        if file.startswith("jaxbo/") and file.endswith(".py"):
            to = app.builder.get_relative_uri(page, f"_modules/{file.removesuffix('.py')}")
            shown = nodes.reference("", "", *link.children, refuri=to, internal=True)
            link.replace_self(shown)


def of_source_pages(app, page, template, context, document):
    """An event of Sphinx: links from a source back to its documentation, to names of another form, go."""
    if page.startswith("_modules/"):
        dead = r'<a class="viewcode-back".*?</a>|<li><a href="builtins.html">.*?</li>'
        context["body"] = re.sub(dead, "", context["body"], flags=re.S)


def of_names(app, document):
    """An event of Sphinx: a public name in `code` becomes a link to the API."""
    for code in list(document.findall(nodes.literal)):
        if code.astext() in FIELDS:
            continue
        name = re.sub(r"\(.*\)$", "", code.astext(), flags=re.S).removeprefix("jaxbo.")
        public = name.split(".")[0] in jaxbo.__all__ or name.startswith(PACKAGES)
        if not public or isinstance(code.parent, nodes.reference | pending_xref | nodes.title):
            continue
        link = pending_xref(
            "",
            refdomain="py",
            reftype="obj",
            reftarget=f"jaxbo.{name}",
            refdoc=app.env.docname,
            refwarn=False,
        )
        code.replace_self(link)
        link += code
