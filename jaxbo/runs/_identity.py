"""The identity of a run: a short digest of each of its parts, field by field.

    part ──┬─ "": its class          surrogate: its class          surrogate.size: its number
           └─ a field, a key or a place in a list: the same again

A digest is made of classes, numbers, texts and the code of functions, and never of how something prints
itself: addresses, the order of a set and the seed of Python's hashes are in none. So it is the same in
every process. Only a user's own function is compared by its compiled code, which other versions of
Python write differently. Functions of this package go by their names.

How many observations a model has room for is no part of a run: it may be given more.
"""

import dataclasses
import enum
import functools
import hashlib
import json
import numbers
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import CodeType
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.random as jr
import numpy as np

from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.kernels.models.surrogate import AbstractSurrogate
from jaxbo.runs._archive import OtherRunError

#: A digest of each field of each part.
Identity: TypeAlias = dict[str, dict[str, str]]

#: So many fields that differ are named.
NAMED = 3


def identity(**parts: Any) -> Identity:
    """The identity of a run with the given parts."""
    return {name: dict(_fields(part, "", ())) for name, part in parts.items()}


def whole(identity: Identity) -> str:
    """A digest of all of it."""
    text = [f"{name} {path} {value}" for name, at in identity.items() for path, value in at.items()]
    return _hashed("\n".join(text).encode())


def check_same(path: Path, mine: Identity, theirs: Mapping[str, Any]) -> None:
    """`CheckpointError` that names the parts, and fields, of which the file has others."""
    others = [_another(name, at, theirs.get(name)) for name, at in mine.items()]
    differing = [text for text in others if text]
    if differing:
        raise OtherRunError(
            f"{path} belongs to a run with {', and '.join(differing)}; "
            "give the same as before to continue it"
        )


def _another(name: str, mine: dict[str, str], theirs: Any) -> str:
    """How this part differs; empty if it does not."""
    if mine == theirs:
        return ""
    theirs = theirs if isinstance(theirs, dict) else {}
    paths = [path for path in {**mine, **theirs} if mine.get(path) != theirs.get(path)]
    outer = [path for path in paths if not any(_within(path, other) for other in paths)]
    named = ", ".join(outer[:NAMED]) + (", …" if len(outer) > NAMED else "")
    verb = "differs" if len(outer) == 1 else "differ"
    return f"another {name}: {named} {verb}" if named else f"another {name}"


def _within(path: str, other: str) -> bool:
    """Whether `other` is a place that holds this place."""
    return path != other and (not other or path.startswith((f"{other}.", f"{other}[")))


def _fields(part: Any, path: str, above: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    """The places in a part, with a digest of each."""
    inner = _inner(part)
    if inner is None or id(part) in above:
        yield path, _digest(part, above)
        return
    yield path, _hashed(_class(part))
    for name, value in inner:
        place = name if not path or name.startswith("[") else f".{name}"
        yield from _fields(value, path + place, (*above, id(part)))


def _inner(part: Any) -> Sequence[tuple[str, Any]] | None:
    """The fields of a part by name; None for a part without named fields."""
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        names = [field.name for field in dataclasses.fields(part)]
        return [(name, getattr(part, name)) for name in names if not _is_room(part, name)]
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        return list(part._asdict().items())  # type: ignore[attr-defined]
    if isinstance(part, Mapping) and all(isinstance(key, str) for key in part):
        return [(_quoted(key), value) for key, value in sorted(part.items())]
    if isinstance(part, list | tuple):
        if all(_is_pair(item) for item in part) and len(dict(part)) == len(part):
            return [(_quoted(key), value) for key, value in part]
        return [(f"[{place}]", value) for place, value in enumerate(part)]
    return None


def _quoted(name: str) -> str:
    """A name that is no place of its own in a path."""
    return name if name.isidentifier() else f"[{json.dumps(name)}]"


def _is_room(part: Any, name: str) -> bool:
    return name == "capacity" and isinstance(part, AbstractSurrogate | AbstractAlgorithm)


def _is_pair(item: Any) -> bool:
    """Whether it is a name with its thing, as the parameters of a space are."""
    return isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)


def _digest(part: Any, above: tuple[int, ...]) -> str:
    """The digest of a part without fields."""
    return _hashed(*_pieces(part, above))


def _pieces(part: Any, above: tuple[int, ...]) -> Iterator[bytes]:
    """The text that tells a part from others, without its address. A part within itself is its class."""
    yield _class(part)
    if id(part) in above:
        return
    if isinstance(part, bytes | str):
        yield part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
    elif isinstance(part, enum.Enum):
        yield part.name.encode()
    elif isinstance(part, type) or _is_ours(part):
        yield f"{part.__module__}.{part.__qualname__}".encode()
    elif isinstance(part, np.dtype):
        yield part.name.encode()
    elif isinstance(part, bool | np.bool_ | numbers.Integral):
        yield str(int(part)).encode()
    elif isinstance(part, float | np.floating):
        yield float(part).hex().encode()
    elif eqx.is_array(part) or isinstance(part, np.ndarray | np.generic):
        yield from _of_array(part, above)
    elif isinstance(part, Set):
        yield from sorted(_text(item, above) for item in part)
    else:
        for item in _held(part):
            yield _text(item, (*above, id(part)))


def _of_array(array: Any, above: tuple[int, ...]) -> Iterator[bytes]:
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jr.key_data(array)
    array = np.asarray(array)
    yield f"{array.dtype.name}{array.shape}".encode()
    yield _text(array.tolist(), above) if array.dtype == object else array.tobytes()


def _held(part: Any) -> Sequence[Any]:
    """The code of a function, or the state of another object, as far as it can be seen."""
    if isinstance(part, functools.partial):
        return part.func, part.args, part.keywords
    if isinstance(part, Mapping):
        return sorted(_text(item, ()) for item in part.items())
    if isinstance(part, CodeType):
        return part.co_code, part.co_names, part.co_consts
    if function := getattr(part, "__func__", None):
        return function, part.__self__
    if code := getattr(part, "__code__", None):
        cells = [_cell(cell) for cell in part.__closure__ or ()]
        return code, cells, part.__defaults__, part.__kwdefaults__
    if wrapped := getattr(part, "__wrapped__", None):
        return (wrapped,)
    if name := getattr(part, "__qualname__", None):
        return getattr(part, "__module__", None), name
    return _pickled(part)


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing is in it yet
        return None


def _pickled(part: Any) -> Sequence[Any]:
    """The state that `pickle` would save of an object; empty if it cannot save it."""
    try:
        saved = part.__reduce_ex__(4)
    except Exception:  # of an object's own code
        return ()
    if isinstance(saved, str):
        return (saved,)
    _, arguments, *rest = saved
    return arguments, *(list(item) if isinstance(item, Iterator) else item for item in rest)


def _is_ours(part: Any) -> bool:
    """Whether it is a function of this package that has a name of its own."""
    name = getattr(part, "__qualname__", "<")
    ours = str(getattr(part, "__module__", "")).startswith("jaxbo.")
    return ours and callable(part) and "<" not in name


def _text(part: Any, above: tuple[int, ...]) -> bytes:
    """A digest of all its fields."""
    return _hashed(
        *(f"{path} {value}".encode() for path, value in _fields(part, "", above))
    ).encode()


def _class(part: Any) -> bytes:
    """The name of its class. Whole numbers have a common name, and so have JAX's arrays."""
    kinds = (bool | np.bool_, "bool"), (numbers.Integral, "int"), (jax.Array, "array")
    for kind, name in kinds:
        if isinstance(part, kind):
            return name.encode()
    name, module = type(part).__qualname__, type(part).__module__
    return (f"{module}.{name}" if module.startswith("jaxbo.") else name).encode()


def _hashed(*pieces: bytes) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(len(piece).to_bytes(8, "little") + piece)
    return digest.hexdigest()[:16]
