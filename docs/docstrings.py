"""Docstrings as reStructuredText. They are plain text: paragraphs, lists, indented formulas, `code`.

A block that is indented is a formula or code, and is shown as it stands. Lines that begin with
arguments are a list. Elsewhere, lines are joined, and characters that mean something in reStructuredText
are escaped.

Sections are those of Google's style (`SECTIONS`). They stay as they are, and only their text is
converted: `sphinx.ext.napoleon` runs after this module and makes lists of them.
"""

import re
import textwrap

#: A line of these begins a section, whose lines are indented.
SECTIONS = ("Args", "Returns", "Raises", "Example")
SECTION = re.compile(rf"^({'|'.join(SECTIONS)}):\n((?:[ \t]*\n|[ ]+.*\n)*)", flags=re.M)
#: The first line of an entry of `Args` or `Raises`.
ENTRY = re.compile(r"(?P<name>\S+): (?P<text>.*)")
ITEM = re.compile(r"[-*] |\d+\. ")
ARGUMENT = re.compile(r"`\w+`(, `\w+`)*: ")
#: Where types come from, which goes without saying, and types as their aliases are written out.
SOURCES = re.compile(r"~?(jaxtyping|(jax\.)?jaxlib\._jax|jax\._src\.literals|numpy)\.")
ALIASES = {
    "Array | ndarray | bool | number | bool | int | float | complex": "ArrayLike",
    "ArrayLike | TypedNdArray": "ArrayLike",
    "Key[Array, ''] | UInt32[Array, '2'] | UInt32[Array, '4']": "Key",
    "<factory>": "...",
}
#: A role, which autodoc writes for aliases, `code`, and characters with a meaning in reStructuredText.
TOKEN = re.compile(r"(?P<role>:[\w:]+:`[^`]+`)|`(?P<code>[^`]+)`|(?P<special>[\\*|_])")


def process(app, what, name, obj, options, lines):
    """An event of autodoc: changes `lines` in place."""
    text = converted("\n".join(lines))
    if what in ("attribute", "data", "property"):
        text = untyped(text)
    lines[:] = text.splitlines()


def skip(app, what, name, obj, skipped, options):
    """An event of autodoc: fields of named tuples without a docstring of their own are left out."""
    automatic = (getattr(obj, "__doc__", None) or "").startswith("Alias for field number")
    return True if automatic else None


def sign(app, what, name, obj, options, signature, annotation):
    """An event of autodoc: aliases by their names, and not as all that they may be."""
    return short(signature), short(annotation)


def short(types):
    types = types and SOURCES.sub("", types)
    for written, alias in ALIASES.items():
        types = types and types.replace(written, alias)
    return types


def converted(text):
    """A docstring, without its indentation."""
    parts = SECTION.split(textwrap.dedent(text).strip("\n") + "\n")
    found = [paragraphs(parts[0])]
    for name, body, rest in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        found += [section(name, textwrap.dedent(body)), paragraphs(rest)]
    return "\n\n".join(part for part in found if part) + "\n"


def section(name, body):
    if name == "Example":  # shown as it stands
        text = body.strip("\n")
    elif name == "Returns":
        text = untyped(paragraphs(body))
    else:
        text = "\n".join(entries(body))
    return f"{name}:\n{textwrap.indent(text, '    ')}"


def untyped(text):
    """Napoleon takes the text before a colon on the first line for a type: so this line is empty."""
    return "\\\n" + text if ":" in text.partition("\n")[0] else text


def entries(body):
    """Each name with its text; further paragraphs of it are indented below."""
    for entry in re.split(r"\n(?=\S)", body.strip("\n")):
        first, _, rest = entry.partition("\n")
        found = ENTRY.fullmatch(first)
        if found is None:
            raise ValueError(f"expected 'name: text', got {first!r}")
        text = paragraphs(f"{found['text']}\n{textwrap.dedent(rest)}")
        yield f"{found['name']}: {textwrap.indent(text, '    ').lstrip()}"


def paragraphs(text):
    blocks = re.split(r"\n[ \t]*\n", text.strip("\n"))
    return "\n\n".join(block(b) for b in blocks if b.strip())


def block(text):
    lines = text.splitlines()
    if all(line.startswith("    ") for line in lines):
        return (".. code-block:: pycon" if ">>> " in text else "::") + "\n\n" + text
    if sum(bool(ARGUMENT.match(line)) for line in lines) > 1:
        lines = [f"- {line}" if ARGUMENT.match(line) else line for line in lines]
    if ITEM.match(lines[0]):
        return "\n".join(items(lines))
    return prose(" ".join(line.strip() for line in lines))


def items(lines):
    """Each item on a line of its own."""
    joined = []
    for line in lines:
        if ITEM.match(line):
            joined.append(line.strip())
        else:
            joined[-1] += " " + line.strip()
    for item in joined:
        mark = ITEM.match(item).group()
        yield mark + prose(item[len(mark) :])


def prose(text):
    return TOKEN.sub(marked, text)


def marked(match):
    if match["code"]:
        return rf"\ ``{match['code']}``\ "  # the spaces vanish, and letters may follow
    return match["role"] or "\\" + match["special"]
