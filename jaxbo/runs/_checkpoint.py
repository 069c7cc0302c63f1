"""The files with which a driven run survives a kill: a file for each round, a line for each evaluation.

`PATH` is a NumPy archive with a manifest: the rows told so far, and the queries of the row that is
being evaluated. It is written to a temporary name and renamed. `PATH.open`, its journal, gets a line
for each evaluation of that row as it ends. So a kill loses the evaluations in flight and nothing else.
The run that has the two files holds a lock.
"""

import json
import os
import secrets
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import numpy as np

from jaxbo.runs import _archive
from jaxbo.runs._archive import CheckpointError
from jaxbo.runs._identity import Identity, check_same
from jaxbo.runs._lock import Hold

#: Raised by one when the layout below changes.
FORMAT = 6


class Rows(eqx.Module):
    """The first `told` rows are complete. The row after them may have queries only.

    `times` has when each evaluation began, and its seconds; NaN where that is not known. `ledger` has the
    costs of the queries, with the costs of the open row. `info` has a leaf more, `present`, if it was
    given.
    """

    told: int
    queries: np.ndarray
    values: np.ndarray
    times: np.ndarray
    info: list[np.ndarray]
    failures: Sequence[tuple[int, int, str]]
    ledger: str | None


class Checkpoint:
    """The two files of a run. `kind` says of which kind of run, and `identity` of which run. Other files
    are refused.
    """

    def __init__(self, path: str | os.PathLike, kind: str, identity: Identity):
        self.kind = kind
        self.path = _archive.located(path)
        self.journal = self.path.with_name(self.path.name + ".open")
        self.identity = identity
        self._hold = Hold(self.path)
        self._save = ""  # the name of the last save, which the journal's lines have too
        self._lines: list[dict[str, Any]] = []  # the journal as it was found
        self._length = 0  # bytes of the journal's whole lines

    def resume(self, take: Callable[[Rows | None], None]) -> None:
        """Locks the file and gives `take` the rows that were saved, None if none were.

        `CheckpointError` if the file cannot be used or is in use. Any error unlocks it.
        """
        self._hold.take()
        try:
            rows = self._load()
            if rows is not None:
                self._lines = self._read_journal()
            take(rows)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leaves the file to others."""
        self._hold.release()

    def must_hold(self) -> None:
        """`CheckpointError` unless this object has the file."""
        self._hold.check()

    def _load(self) -> Rows | None:
        if not self.path.exists():
            return None
        manifest, arrays = _archive.read(self.path)
        _archive.check_format(self.path, manifest, self.kind, FORMAT)
        try:
            identity = dict(manifest["identity"])
            rows = Rows(
                int(manifest["told"]),
                arrays["queries"],
                arrays["values"],
                arrays["times"],
                [arrays[f"info_{i}"] for i in range(manifest["info"])],
                [(int(row), int(agent), str(e)) for row, agent, e in manifest["failures"]],
                manifest["ledger"],
            )
            self._save = str(manifest["save"])
        except (KeyError, TypeError, ValueError) as error:
            raise _archive.damaged(self.path, error) from error
        check_same(self.path, self.identity, identity)
        return rows

    def save(self, rows: Rows) -> None:
        """Replaces the file in one step, and begins a new journal."""
        self.must_hold()
        name = secrets.token_hex(8)
        manifest = {
            "kind": self.kind,
            "format": FORMAT,
            "identity": self.identity,
            "save": name,
            "told": rows.told,
            "info": len(rows.info),
            "failures": rows.failures,
            "ledger": rows.ledger,
        }
        arrays = {"queries": rows.queries, "values": rows.values, "times": rows.times}
        arrays |= {f"info_{i}": leaf for i, leaf in enumerate(rows.info)}
        _archive.write(self.path, manifest, arrays)
        self._save = name
        self.forget()

    def forget(self) -> None:
        """Ends the journal. After a kill before, its lines still have the name of an earlier save."""
        self._lines, self._length = [], 0
        self.journal.unlink(missing_ok=True)

    def record(
        self,
        row: int,
        agent: int,
        numbers: Sequence[float],
        error: str | None,
        times: Sequence[float],
    ) -> None:
        """Records that an evaluation has ended: its value, then its outcomes. `times` are its beginning
        and its duration.
        """
        self.must_hold()
        value, *outcomes = [number.hex() for number in numbers]
        line = {"save": self._save, "row": row, "agent": agent, "value": value}
        line |= {"outcomes": outcomes} if outcomes else {}
        line |= {"error": error, "times": [number.hex() for number in times]}
        text = _sealed(json.dumps(line).encode()) + b"\n"
        with open(self.journal, "ab", opener=_archive.private) as file:
            # A line that a kill or a full disk cut off goes first: only the last line may be cut off.
            file.truncate(self._length)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if self._length == 0:
            _archive.sync(self.journal.parent)
        self._length += len(text)

    def recorded(self, row: int) -> dict[int, tuple[np.ndarray, str | None]]:
        """Numbers and error of each agent whose evaluation in `row` had ended."""
        return {line["agent"]: (_numbers_of(line), line["error"]) for line in self._of(row)}

    def times(self, row: int) -> dict[int, list[float]]:
        """The beginning and the seconds of each evaluation."""
        return {line["agent"]: [*map(float.fromhex, line["times"])] for line in self._of(row)}

    def _of(self, row: int) -> list[dict[str, Any]]:
        """The lines of `row`."""
        return [line for line in self._lines if (line["save"], line["row"]) == (self._save, row)]

    def _read_journal(self) -> list[dict[str, Any]]:
        """All lines, but for the last if a kill cut it off. `CheckpointError` for a damaged line."""
        if not self.journal.exists():
            return []
        content = self.journal.read_bytes()
        *lines, rest = content.split(b"\n")
        self._length = len(content) - len(rest)
        if _opened(rest[:-1]) is not None:
            lines.append(rest)  # a whole line, whose end is damaged
        known = [_opened(line) for line in lines]
        if None in known:
            raise CheckpointError(
                f"line {known.index(None) + 1} of {self.journal} is damaged: restore it from a copy, or "
                "remove it to repeat the evaluations in it."
            )
        return [json.loads(line) for line in known if line is not None]


def _numbers_of(line: dict[str, Any]) -> np.ndarray:
    return np.asarray([*map(float.fromhex, [line["value"], *line.get("outcomes", [])])])


def _sealed(text: bytes) -> bytes:
    """A line with its sum, which tells a line that a kill cut off from a damaged line."""
    return b"%08x %b" % (zlib.crc32(text), text)


def _opened(line: bytes) -> bytes | None:
    """The text of a line, or None if its sum does not fit."""
    text = line[9:]
    return text if line == _sealed(text) else None
