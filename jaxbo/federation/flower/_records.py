"""Requests and replies as Flower's records. Arrays travel as bytes, and nothing is ever decoded."""

from typing import Any, get_type_hints

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from jaxbo.federation.wire import Packed, RefusedError, Reply, Request

#: How arrays travel: their bytes alone, little end first. Nothing is decoded that somebody has written.
BYTES = "jaxbo.bytes"
#: Names of their types are not longer.
LONGEST = 16


def of_request(request: Request) -> RecordDict:
    records = {
        "request": _scalars(request),
        "setup": arrays({"key": request.setup}),
    }
    if request.broadcast is not None:
        records["broadcast"] = arrays(request.broadcast)
    if request.lists is not None:
        records["lists"] = arrays(request.lists)
    return RecordDict(records)


def to_request(records: RecordDict) -> Request:
    broadcast, lists = (records.array_records.get(name) for name in ("broadcast", "lists"))
    return Request(
        **_fields(records.config_records["request"], Request),
        setup=_packed(records.array_records["setup"])["key"],
        broadcast=None if broadcast is None else _packed(broadcast),
        lists=None if lists is None else _packed(lists),
    )


def of_reply(reply: Reply) -> RecordDict:
    return RecordDict({"reply": _scalars(reply), "message": arrays(reply.message)})


def to_reply(answer: Any) -> Reply | RefusedError:
    """The reply that an answer holds, or the reason why it holds none."""
    try:
        if isinstance(answer, Exception):
            raise answer
        if answer.has_error():
            return RefusedError(answer.error.reason)
        records, fields = answer.content, set(_kinds(Reply))
        config, arrays = records.config_records["reply"], records.array_records["message"]
        if set(records) != {"reply", "message"} or set(config) != fields:
            raise ValueError("it has more than a reply.")
        return Reply(**_fields(config, Reply), message=_packed(arrays))
    # Anybody may have written it: reading it can raise nearly anything.
    except Exception as error:
        return RefusedError(f"no reply of jaxbo's ({type(error).__name__}: {str(error)[:100]})")


def _scalars(record: Request | Reply) -> ConfigRecord:
    """The fields that are no arrays."""
    return ConfigRecord({name: getattr(record, name) for name in _kinds(type(record))})


def _fields(config: ConfigRecord, kind: type[Request] | type[Reply]) -> dict[str, Any]:
    """The fields that `_scalars` wrote. `KeyError` where a field is missing."""
    return {name: config[name] for name in _kinds(kind)}


def _kinds(kind: type[Request] | type[Reply]) -> dict[str, type]:
    return {name: t for name, t in get_type_hints(kind).items() if t in (int, str)}


def arrays(packed: Packed) -> ArrayRecord:
    return ArrayRecord({name: _array(array) for name, array in packed.items()})


def _array(array: np.ndarray) -> Array:
    data = array.astype(array.dtype.newbyteorder("<")).tobytes()
    return Array(str(array.dtype), array.shape, BYTES, data)


def _packed(record: ArrayRecord) -> Packed:
    return {name: _unpacked(array) for name, array in record.items()}


def _unpacked(array: Array) -> np.ndarray:
    """The array of the bytes, without a copy. Raises an error if they are no array."""
    if array.stype != BYTES or len(array.dtype) > LONGEST:
        raise TypeError("an array that is not of jaxbo's.")
    stored = np.dtype(array.dtype).newbyteorder("<")
    numbers = np.frombuffer(array.data, stored).reshape(array.shape)
    if numbers.shape != array.shape:
        raise TypeError("an array of a shape below zero.")
    return numbers.astype(stored.newbyteorder("="), copy=False)


def size(records: RecordDict) -> int:
    """The bytes that Flower sends."""
    return sum(record.count_bytes() for record in records.values())
