"""The examples of the README and of the site run, and their links lead somewhere."""

import importlib.util
import json
import os
import pathlib
import pkgutil
import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser

import jax
import pytest

import jaxbo
from jaxbo.plotting import _curves

ROOT = pathlib.Path(__file__).parents[1]
README = ROOT / "README.md"
#: Pages whose examples are run.
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
#: Files that are run when the site is built, and there alone.
GALLERY = sorted((ROOT / "docs" / "gallery").rglob("*.py"))
#: And files that pages include.
ALL = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "federation" / "README.md"]
TEXTS = {page: page.read_text() for page in ALL}
EXAMPLES = [
    (str(page.relative_to(ROOT)), example)
    for page in PAGES
    for example in re.findall(r"```python\n(.*?)```", TEXTS[page], flags=re.S)
]


#: Runs files one after the other, each from its own folder, and prints as JSON what each printed and what
#: it raised. What one of them imports from jaxbo or ignores of warnings is nothing to the next.
IN_TURN = """
import contextlib, gc, io, json, os, runpy, sys, traceback, warnings
import jaxbo
gc.freeze()
gc.set_threshold(100_000, 50, 100)  # tracing makes many objects
names, ended = set(vars(jaxbo)), []
for script in sys.argv[1:]:
    os.chdir(os.path.dirname(script))
    said, raised = io.StringIO(), ""
    with contextlib.redirect_stdout(said), warnings.catch_warnings():
        try:
            runpy.run_path(script, run_name="__main__")
        except Exception:
            raised = traceback.format_exc()
    ended.append((said.getvalue(), raised))
    for name in set(vars(jaxbo)) - names:  # the next one imports what it needs itself
        sys.modules.pop("jaxbo." + name, None)
        delattr(jaxbo, name)
print(json.dumps(ended))
"""


def within(example, other):
    """Whether the other has all its lines, in their order, and more."""
    lines = iter(other.splitlines())
    return example != other and all(line in lines for line in example.splitlines())


#: What another example begins with: it runs there, and by itself in full tests.
REPEATED = [
    number
    for number, (_, example) in enumerate(EXAMPLES)
    if any(within(example, other) for _, other in EXAMPLES)
]
#: Agents or runs by the thousand or more: too many for what is compiled without any optimization.
THOUSANDS = re.compile(r"\b(agents|runs)( ?= ?\d{3,})0\b")
LARGE = [n for n, (_, example) in enumerate(EXAMPLES) if THOUSANDS.search(example)]
ONCE = [number for number in range(len(EXAMPLES)) if number not in REPEATED]
#: By process: each imports and compiles once what its examples share. The first two have a tenth of the
#: agents and runs where there are thousands, and full tests have all.
GROUPS = {
    "first": ONCE[: len(ONCE) // 2],
    "last": ONCE[len(ONCE) // 2 :],
    "large": LARGE,
    "repeated": [number for number in REPEATED if number not in LARGE],
}
AS_WRITTEN = ("large", "repeated")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "group", [pytest.param(g, marks=pytest.mark.full) if g in AS_WRITTEN else g for g in GROUPS]
)
def test_the_examples_run(group, tmp_path):
    mine = GROUPS[group]
    scripts = [tmp_path / str(number) / "example.py" for number in mine]
    for number, script in zip(mine, scripts, strict=True):
        script.parent.mkdir()
        example = EXAMPLES[number][1]
        if group not in AS_WRITTEN:
            example = THOUSANDS.sub(r"\1\2", example)
        script.write_text(example)  # processes that it starts import it
    environment = {k: v for k, v in os.environ.items() if k != "JAX_ENABLE_X64"}
    environment["PYTHONPATH"] = str(ROOT)
    if jax.config.jax_compilation_cache_dir:  # half of the time of the next run
        environment["JAX_COMPILATION_CACHE_DIR"] = jax.config.jax_compilation_cache_dir
        # Others may read half of a program that JAX itself writes, as it does here: few are written.
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"
    environment["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"
    if group in AS_WRITTEN:
        environment["XLA_FLAGS"] = environment["XLA_FLAGS"].replace("level=0", "level=1")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IN_TURN, *map(str, scripts)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=570,
    )
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout.splitlines()[-1])
    failures = {n: raised for n, (_, raised) in zip(mine, ended, strict=True) if raised}
    assert not failures, "".join(f"{EXAMPLES[n][0]}: {raised}" for n, raised in failures.items())
    assert all(said.strip() for said, _ in ended)


def test_there_are_examples_of_all_loops_and_of_a_method():
    for words in ("jaxbo.run(", "jaxbo.drive(", "jaxbo.drive_async(", "AbstractFederated"):
        assert any(words in example for _, example in EXAMPLES)


def test_the_readme_is_short():
    assert len(README.read_bytes()) <= 9000
    for page, example in EXAMPLES:
        if page == "README.md":
            assert len([line for line in example.splitlines() if line]) <= 15


def test_every_file_they_point_to_exists():
    for page, text in TEXTS.items():
        targets = re.findall(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)", text)
        targets += re.findall(r"^```\{(?:literal)?include\} (\S+)$", text, flags=re.M)
        for target in targets:
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page}: {target}"


def test_the_gallery_page_has_a_picture_a_file_in_thirty_lines():
    listed = re.findall(r"minigallery:: (\S+)$", TEXTS[ROOT / "docs" / "gallery.md"], flags=re.M)
    shown = {path for pattern in listed for path in (ROOT / "docs").glob(pattern)}
    assert shown == set(GALLERY)
    for path in GALLERY:
        text = path.read_text()
        compile(text, str(path), "exec")
        (title, below), code = text.splitlines()[1:3], text.split('"""')[2]
        assert below == "=" * len(title)
        assert len([line for line in code.splitlines() if line]) <= 30, path
        assert re.search(r"^ax = ", code, flags=re.M), path
        assert f"drawn/{path.parent.name}/*" in TEXTS[ROOT / "docs" / "gallery.md"]


@pytest.mark.parametrize("name", ["privacy/loss", "workers/factors"])
def test_a_picture_of_the_gallery_is_saved_as_vectors_with_its_title(name, tmp_path, monkeypatch):
    monkeypatch.setattr(_curves, "SIZE", _curves.SIZE)  # which is made narrow
    figures, file = module("figures"), ROOT / "docs" / "gallery" / f"{name}.py"
    figures.narrow(None, None)
    found = {
        "image_path_iterator": iter([str(tmp_path / "picture.png")]),
        "example_globals": runpy.run_path(str(file)),
        "src_file": str(file),
    }
    markup = figures.scraper(None, found, {"src_dir": str(tmp_path)})
    title = file.read_text().splitlines()[1]
    assert markup.split() == ["..", "image::", "/picture.svg", ":alt:", *title.split()]
    assert "<svg" in (tmp_path / "picture.svg").read_text()


def test_every_make_target_they_name_exists():
    makefile = (ROOT / "Makefile").read_text()
    for page, text in TEXTS.items():
        for target in set(re.findall(r"(?:^|`)make ([\w-]+)", text, flags=re.M)):
            rule = rf"^(?:[\w-]+ )*{target}(?: [\w-]+)*:"
            assert re.search(rule, makefile, flags=re.M), f"{page}: make {target}"


def test_the_figures_of_every_experiment_are_on_a_page():
    # The page of all claims is made from the results, so that it names them all.
    named = "\n".join(TEXTS[page] for page in PAGES[1:] if page.name != "claims.md")
    results = {path.stem for path in (ROOT / "bench" / "results").glob("*.json")}
    missing = {name for name in results if f"bench/results/{name}." not in named}
    assert not missing


def module(name):
    """A module of `docs`, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="module")
def names():
    """`docs/names.py`, which says which page documents a name."""
    return module("names")


def test_every_public_name_is_on_one_page_of_the_api(names):
    pages = names.public()
    listed = [name for page in pages.values() for name in page]
    assert sorted(listed) == sorted(jaxbo.__all__)
    for page in (*pages, *names.PARTS):
        assert ROOT / "docs" / f"{page}.md" in TEXTS, page


def test_every_module_that_is_meant_to_be_used_on_its_own_is_among_the_parts(names):
    parts = [module for page in names.PARTS for module in names.modules(page)]
    assert len(parts) == len(set(parts))
    below = [m.name for m in pkgutil.walk_packages(jaxbo.__path__, "jaxbo.") if "._" not in m.name]
    kept = (
        "jaxbo.kernels.",
        "jaxbo.privacy",
        "jaxbo.domains",
        "jaxbo.algos",
        "jaxbo.runs",
        "jaxbo.federation",
    )
    elsewhere = {names.defining(name) for name in jaxbo.__all__}
    missing = {name for name in below if name.startswith(kept)} - set(parts) - elsewhere
    assert not missing


DOCSTRING = """`x` has |x| * 2 and w_
in two lines.

    y = |x| * w_

`a`, `b`: two numbers,
    of any size.
`c`: another.

Between.

- an item
  of two lines
"""


def test_a_docstring_keeps_its_formulas_lists_and_characters():
    publish = pytest.importorskip("docutils.core").publish_doctree
    tree = publish(
        module("docstrings").converted(DOCSTRING),
        settings_overrides={"halt_level": 2, "report_level": 2},
    )
    assert [type(node).__name__ for node in tree.children] == [
        *("paragraph", "literal_block", "bullet_list", "paragraph", "bullet_list"),
    ]
    texts = [node.astext() for node in tree.children]
    assert texts[:2] == ["x has |x| * 2 and w_ in two lines.", "y = |x| * w_"]
    arguments, items = ([item.astext() for item in tree.children[n].children] for n in (2, 4))
    assert arguments == ["a, b: two numbers, of any size.", "c: another."]
    assert items == ["an item of two lines"]


SECTIONS = """Does x.

Args:
    x: A number of |x|
        in two lines.

        More of w_.
    y_: Another: default 1.

Returns:
    A pair: a_ and `b`.

Raises:
    ValueError: `x` is
        negative.

Example:
    >>> f(1) * 2
    a_
"""
CONVERTED = r"""Does x.

Args:
    x: A number of \|x\| in two lines.

        More of w\_.
    y_: Another: default 1.

Returns:
    \
    A pair: a\_ and \ ``b``\ .

Raises:
    ValueError: \ ``x``\  is negative.

Example:
    >>> f(1) * 2
    a_
"""


def test_a_docstring_keeps_its_sections_and_its_examples():
    assert module("docstrings").converted(SECTIONS) == CONVERTED


@pytest.mark.full
def test_with_the_cache_that_it_describes_a_second_process_compiles_nothing_and_is_silent(tmp_path):
    (line,) = re.findall(
        r"^export (JAX_COMPILATION_CACHE_DIR=.*)$", TEXTS[ROOT / "docs" / "speed.md"], flags=re.M
    )
    described = dict(pair.split("=") for pair in line.split())
    described["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path / "cache")
    others = {k: v for k, v in os.environ.items() if "CACHE" not in k}
    script = """
import jax, jax.monitoring, jax.random as jr, jaxbo
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event.split("/")[-1]))
ts = jaxbo.TS(jaxbo.Cube(1), 2, jaxbo.Fixed(size=10), candidates=20)
_, trace = jaxbo.run(ts, lambda key, agent, x: -x[0] ** 2, 2, jr.key(0))
print(float(trace.values.sum()), events.count("cache_misses"), events.count("cache_hits") > 0)
"""
    said = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env=others | described,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        said.append(done.stdout.split())
    (value, misses, _), (again, misses_again, hits) = said
    assert value == again
    assert int(misses) > 0
    assert (misses_again, hits) == ("0", "True")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("own", "tests"),
    [
        pytest.param("gossip:Gossip", "scanned", marks=pytest.mark.slow),
        pytest.param("gossip:Gossip", "", marks=pytest.mark.full),
        pytest.param("tests.examples.one_model:EpsilonGreedy", "", marks=pytest.mark.full),
    ],
)
def test_a_method_of_ones_own_keeps_the_contract(own, tests, tmp_path):
    method = next(example for _, example in EXAMPLES if "class Gossip" in example)
    (tmp_path / "gossip.py").write_text(method.split("gossip = Gossip(")[0])
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    environment |= {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    contract = ROOT / "tests" / "algos" / "test_contract.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(contract)]
    command += ["--compile", "bitwise", "--method", own, "-k", tests]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_no_line_of_a_page_is_a_comment():
    # MyST drops a line that begins with a percent sign, and a figure may be broken before its sign.
    dropped = [
        f"{page.relative_to(ROOT)}: {line}"
        for page, text in TEXTS.items()
        for line in re.sub(r"^```.*?^```", "", text, flags=re.M | re.S).splitlines()
        if line.lstrip().startswith("%")
    ]
    assert dropped == []


class Targets(HTMLParser):
    """Where the links and pictures of a page lead, the names it has, and pictures that are no links."""

    def __init__(self, page):
        super().__init__()
        self.links, self.names = [], set()
        self.linked, self.bare = None, []
        self.feed(page.read_text())

    def handle_endtag(self, tag):
        if tag == "a":
            self.linked = None

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "a":
            self.linked = attrs.get("href")
        if tag == "img" and self.linked is None and "_thumb." not in attrs["src"]:
            self.bare.append(attrs["src"])
        self.links += [attrs[key] for key in ("href", "src") if attrs.get(key)]
        self.names |= {attrs["id"]} if attrs.get("id") else set()


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_site_is_built_without_a_warning_has_all_names_and_no_dead_link(tmp_path):
    pytest.importorskip("sphinx_book_theme")
    pytest.importorskip("sphinx_gallery")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going"]
    done = subprocess.run(
        [*command, "-d", str(tmp_path / "doctrees"), str(ROOT / "docs"), str(site)],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k != "XLA_FLAGS"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = {p.resolve(): Targets(p) for p in site.rglob("*.html") if "_static" not in p.parts}
    assert len(pages) > len(PAGES)
    for page, targets in pages.items():
        for link in targets.links:
            if re.match(r"\w+:|//", link):
                continue
            path, _, anchor = link.partition("#")
            path = (page.parent / path.split("?")[0]).resolve() if path else page
            assert path.exists(), f"{page}: {link}"
            assert not anchor or path not in pages or anchor in pages[path].names, f"{page}: {link}"
    # A picture leads to itself, so that it can be looked at on a phone.
    shown = [t for page, t in pages.items() if page.parent.name in ("site", "experiments")]
    assert any("_images/demo.png" in targets.links for targets in shown)
    assert [targets.bare for targets in shown if targets.bare] == []
    documented = set().union(*(targets.names for targets in pages.values()))
    modules = {
        "accounting",
        "functions",
        "metrics",
        "objectives",
        "plotting",
        "schedules",
        "stopping",
    }
    assert {f"jaxbo.{name}" for name in set(jaxbo.__all__) - modules} <= documented
