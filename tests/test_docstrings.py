"""Every public name is documented in one style, and its examples are true.

The code says which names a docstring must have: the signature has the parameters, the body the errors.
A body raises the errors of its `raise` statements. It also raises a `ValueError` if it calls `require` or
another check of `jaxbo._check`, or a function called `check_...`.
"""

import ast
import doctest
import importlib
import inspect
import pathlib
import re
import textwrap

import pytest

import jaxbo
from jaxbo import _check, federation
from tests.arguments.test_all_names import public

PACKAGE = pathlib.Path(jaxbo.__file__).parent
SECTIONS = ("Args", "Returns", "Raises", "Example")
CHECKS = {name for name, thing in vars(_check).items() if inspect.isfunction(thing)}
CHECKS -= {"shown", "takes"}


def documented():
    """Names with the function or class of each: of `jaxbo`, of its public modules and of `federation`."""
    found = {}
    for name in (*jaxbo.__all__, "federation"):
        thing = federation if name == "federation" else getattr(jaxbo, name)
        if inspect.ismodule(thing):
            found |= {f"{name}.{inner}": getattr(thing, inner) for inner in sorted(public(thing))}
        elif callable(thing):
            found[name] = thing
    return found


NAMES = documented()
SHORT = {name.split(".")[-1] for name in NAMES}
CLASSES = {name: thing for name, thing in NAMES.items() if inspect.isclass(thing)}


def sections(thing):
    """The text of each section by name, and the text above them under no name."""
    parts = re.split(rf"^({'|'.join(SECTIONS)}):\n", inspect.getdoc(thing) or "", flags=re.M)
    found = {"": parts[0]} | dict(zip(parts[1::2], parts[2::2], strict=True))
    assert [name for name in SECTIONS if name in found] == list(found)[1:], "another order"
    return found


def entries(thing, section):
    """The names that a section explains, each with a text."""
    lines = textwrap.dedent(sections(thing).get(section, ""))
    return [name.lstrip("*") for name in re.findall(r"^(\S+): \S", lines, flags=re.M)]


def begins_with_a_sentence(thing):
    """Not with the signature that dataclasses have, nor with a word in lower case."""
    first = re.split(r"\n\s*\n", sections(thing)[""].strip())[0]
    return re.search(r"\.\s|[.:]$", first) is not None and not re.match(r"[a-z]|\w+\(", first)


def parameters(thing):
    """The names of the parameters of a function, of a method without itself, or of a constructor."""
    try:
        signature = inspect.signature(thing)
    except ValueError:  # an exception's, of any arguments
        return []
    return [name for name in signature.parameters if name not in ("self", "cls")]


def returns(function):
    return inspect.signature(function).return_annotation not in (None, "None")


def bodies(thing):
    """The functions that run when a function is called or an object made."""
    if not inspect.isclass(thing):
        return [inspect.unwrap(thing)]
    made = ("__init__", "__check_init__", "__post_init__")
    own = [vars(thing)[name] for name in made if name in vars(thing)]
    return [f for f in map(inspect.unwrap, own) if f.__module__ == thing.__module__]


def raised(thing):
    """The names of the errors that a body raises by itself."""
    found = set()
    for body in bodies(thing):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(body)))
        except (OSError, TypeError):  # made by a decorator
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                found.add(ast.unparse(node.exc.func))
            elif isinstance(node, ast.Call):
                called = ast.unparse(node.func).split(".")[-1]
                if called in CHECKS or called.lstrip("_").startswith("check_"):
                    found.add("ValueError")
    return {name for name in found if not name.startswith("_")}


def methods(kind):
    """The public methods and properties that a class has from this package, by name."""
    return {
        name: thing.fget if isinstance(thing, property) else thing
        for name in dir(kind)
        if not name.startswith("_")
        if isinstance(thing := inspect.getattr_static(kind, name), property)
        or inspect.isroutine(thing := getattr(kind, name))
        if f"{getattr(getattr(thing, 'fget', thing), '__module__', '')}".startswith("jaxbo.")
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_a_sentence_its_parameters_its_result_its_errors_and_an_example(name):
    thing = NAMES[name]
    assert thing.__doc__
    assert begins_with_a_sentence(thing)
    assert entries(thing, "Args") == parameters(thing)
    assert "Example" in sections(thing)
    assert ">>> " in sections(thing)["Example"]
    if not inspect.isclass(thing):
        assert ("Returns" in sections(thing)) == returns(thing)
    assert raised(thing) <= set(entries(thing, "Raises"))


@pytest.mark.parametrize("name", CLASSES)
def test_a_public_method_has_a_sentence_and_says_what_its_arguments_are(name):
    for method, thing in methods(CLASSES[name]).items():
        own = inspect.getattr_static(CLASSES[name], method)
        documented = own if isinstance(own, property) else getattr(CLASSES[name], method)
        assert inspect.getdoc(documented), method
        assert begins_with_a_sentence(documented), method
        if given := parameters(thing):
            assert entries(documented, "Args") == given, method
            assert ("Returns" in sections(documented)) == returns(thing), method
            assert raised(thing) <= set(entries(documented, "Raises")), method


def examples(path):
    """The docstrings of a file that have examples: the name, the text and the line of each."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node)
            if text and ">>> " in text:
                yield getattr(node, "name", path.stem), text, node.body[0].lineno - 1


WITH_EXAMPLES = {
    str(path.relative_to(PACKAGE)): found
    for path in sorted(PACKAGE.rglob("*.py"))
    if (found := list(examples(path)))
}


@pytest.mark.slow
@pytest.mark.parametrize("file", WITH_EXAMPLES)
def test_the_examples_are_true(file):
    """Those of a public name import what they need. Others have the thing itself."""
    module = importlib.import_module("jaxbo." + file.removesuffix(".py").replace("/", "."))
    parser, runner, said = doctest.DocTestParser(), doctest.DocTestRunner(verbose=False), []
    for name, text, line in WITH_EXAMPLES[file]:
        known = {} if name in SHORT else {name: getattr(module, name, None)}
        runner.run(parser.get_doctest(text, known, name, file, line), out=said.append)
    assert runner.tries
    assert not runner.failures, "".join(said)
