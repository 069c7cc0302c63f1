"""Docstrings as reStructuredText. They are plain text: paragraphs, lists, indented formulas, `code`.

A block that is indented is a formula or an example, and is shown as it stands. Lines that begin with
arguments are a list. Elsewhere, lines are joined, and characters that mean something in reStructuredText
are escaped.
"""

import re
import textwrap

ITEM = re.compile(r"[-*] |\d+\. ")
ARGUMENT = re.compile(r"`\w+`(, `\w+`)*: ")
#: Where types come from, which goes without saying, and types as their aliases are written out.
SOURCES = re.compile(r"~?(jaxtyping|jaxlib\._jax|numpy)\.")
ALIASES = {
    "Array | ndarray | bool | number | bool | int | float | complex": "ArrayLike",
    "Key[Array, ''] | UInt32[Array, '2'] | UInt32[Array, '4']": "Key",
    "<factory>": "...",
}
#: A role, which autodoc writes for aliases, `code`, and characters with a meaning in reStructuredText.
TOKEN = re.compile(r"(?P<role>:[\w:]+:`[^`]+`)|`(?P<code>[^`]+)`|(?P<special>[\\*|_])")


def process(app, what, name, obj, options, lines):
    """An event of autodoc: changes `lines` in place."""
    lines[:] = converted("\n".join(lines)).splitlines()


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
    blocks = re.split(r"\n[ \t]*\n", textwrap.dedent(text).strip("\n"))
    return "\n\n".join(block(b) for b in blocks if b.strip()) + "\n"


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
