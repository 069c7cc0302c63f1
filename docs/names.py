"""Which names a page of `api` documents: `jaxbo.__all__`, dealt out by where each name is defined.

A new name of jaxbo is on the page of its module without anything being done. `parts` are the modules
below, without the public names.
"""

import importlib
import inspect
from pathlib import Path

import jaxbo

#: Page -> packages. A public name is on the first page that has the package of its definition.
PUBLIC = {
    "api/methods": "jaxbo.algos",
    "api/running": "jaxbo.runs",
    "api/spaces": "jaxbo.domains",
    "api/models": "jaxbo.kernels",
    "api/privacy": "jaxbo.privacy",
    "api/objectives": "jaxbo.objectives",
    "api/helpers": "jaxbo",
}
PARTS = {
    "api/parts/processes": [
        "jaxbo.kernels.processes",
        "jaxbo.kernels.linalg",
        "jaxbo.kernels.moments",
    ],
    "api/parts/models": ["jaxbo.kernels.models"],
    "api/parts/choosing": ["jaxbo.kernels.choosing"],
    "api/parts/factors": ["jaxbo.kernels.factors"],
    "api/parts/additive": ["jaxbo.kernels.additive"],
    "api/parts/accelerated": ["jaxbo.kernels.accelerated"],
    "api/parts/methods": ["jaxbo.algos"],
    "api/parts/runs": ["jaxbo.runs"],
    "api/parts/privacy": ["jaxbo.privacy"],
    "api/parts/domains": ["jaxbo.domains", "jaxbo.objectives", "jaxbo.types", "jaxbo.layout"],
    "api/parts/federation": ["jaxbo.federation"],
}


def add(app, page, source):
    """An event of Sphinx: the directives of a page follow its text."""
    directives = [directive(name) for name in public().get(page, ())]
    directives += [part(module) for module in modules(page)]
    if directives:
        source[0] += "\n```{eval-rst}\n" + "\n".join(directives) + "\n```\n"


def public():
    """Page -> its public names, in the order of `jaxbo.__all__`."""
    pages = {page: [] for page in PUBLIC}
    for name in jaxbo.__all__:
        module = defining(name)
        pages[next(p for p, root in PUBLIC.items() if is_in(module, root))].append(name)
    return pages


def defining(name):
    """The module that a public name is, or that defines it."""
    thing = getattr(jaxbo, name)
    return thing.__name__ if inspect.ismodule(thing) else getattr(thing, "__module__", "jaxbo")


def is_in(module, package):
    return f"{module}.".startswith(f"{package}.")


def modules(page):
    """The modules of a page of parts, without private modules and modules that are public names."""
    taken = {defining(name) for name in jaxbo.__all__ if inspect.ismodule(getattr(jaxbo, name))}
    for root in PARTS.get(page, ()):
        for name in [root, *below(root)]:
            if name not in taken and "._" not in name:
                yield name


def below(root):
    """The modules in a package, by its files: some need extras to be imported."""
    folder = Path(jaxbo.__file__).parents[1]
    package = folder / root.replace(".", "/")
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(folder).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        if name != root:
            yield name


def directive(name):
    thing = getattr(jaxbo, name)
    if inspect.ismodule(thing):
        return f"{titled(thing.__name__)}.. automodule:: {thing.__name__}\n   :members:\n"
    if inspect.isclass(thing):
        return f"{titled(name)}.. autoclass:: jaxbo.{name}\n   :members:\n"
    if callable(thing):
        return f"{titled(name)}.. autofunction:: jaxbo.{name}\n"
    return f"{titled(name)}.. py:data:: jaxbo.{name}\n   :value: {thing!r}\n"


def part(module):
    here = [name for name in jaxbo.__all__ if defining(name) == module]
    known = ", ".join([*here, *offered(module)])
    return f"{titled(module)}.. automodule:: {module}\n   :members:\n   :exclude-members: {known}\n"


def offered(module):
    """The names of a module that its package offers: they are documented with the package."""
    package = importlib.import_module(module.rpartition(".")[0])
    names = getattr(package, "__all__", ())
    return [n for n in names if getattr(getattr(package, n), "__module__", None) == module]


def titled(name):
    title = name.removeprefix("jaxbo.")
    return f"{title}\n{'-' * len(title)}\n\n"
