"""What a driven run needs to survive a kill: one file a round, one line an evaluation.

`PATH` is a NumPy archive with a manifest: the rows told so far, and the queries of the row that is
being evaluated. It is written to a temporary name and renamed. `PATH.open` gets one line of JSON for
each evaluation of that row as it ends. So a kill loses the evaluations in flight and nothing else.
"""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np

from jaxbo import _archive
from jaxbo._check import require

#: Raised by one when the layout below changes.
FORMAT = 4


class Rows(eqx.Module):
    """The first `told` rows are complete; one more may have queries only.

    `ledger` is what the queries have cost, those of the open row included; `info` has a leaf more,
    `present`, where that was given.
    """

    told: int
    queries: np.ndarray
    values: np.ndarray
    info: list[np.ndarray]
    failures: Sequence[tuple[int, int, str]]
    ledger: str | None


def fingerprint(**parts: Any) -> dict[str, str]:
    """A short digest of each part's structure and numbers."""
    return {name: _digest(part) for name, part in parts.items()}


def _digest(part: Any) -> str:
    leaves, structure = jax.tree.flatten(part)
    digest = hashlib.sha256(_stable(structure).encode())
    for leaf in leaves:
        if eqx.is_array(leaf) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jr.key_data(leaf)
        array = np.asarray(leaf)
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes() if array.dtype != object else _stable(leaf).encode())
    return digest.hexdigest()[:16]


def _stable(part: Any) -> str:
    """Its representation without addresses, which differ from process to process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(part))


class Checkpoint:
    """The two files of one run. `identity` says which run: a file of another one is refused."""

    def __init__(self, path: str | os.PathLike, identity: dict[str, str]):
        self.path = Path(path)
        require(
            self.path.parent.is_dir(), f"the checkpoint's folder {self.path.parent} does not exist."
        )
        self.journal = self.path.with_name(self.path.name + ".open")
        self.identity = identity

    def load(self) -> Rows | None:
        """What was saved, or None if nothing was. `CheckpointError` if it cannot be used."""
        if not self.path.exists():
            return None
        manifest, arrays = _archive.read(self.path)
        _archive.check_format(self.path, manifest, FORMAT)
        try:
            identity = dict(manifest["identity"])
            rows = Rows(
                int(manifest["told"]),
                arrays["queries"],
                arrays["values"],
                [arrays[f"info_{i}"] for i in range(manifest["info"])],
                [(int(row), int(agent), str(e)) for row, agent, e in manifest["failures"]],
                manifest["ledger"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _archive.damaged(self.path, error) from error
        _archive.check_same(self.path, self.identity, identity)
        return rows

    def save(self, rows: Rows) -> None:
        """Replaces the file in one step, and begins a new journal."""
        manifest = {
            "format": FORMAT,
            "identity": self.identity,
            "told": rows.told,
            "info": len(rows.info),
            "failures": rows.failures,
            "ledger": rows.ledger,
        }
        arrays = {"queries": rows.queries, "values": rows.values}
        arrays |= {f"info_{i}": leaf for i, leaf in enumerate(rows.info)}
        _archive.write(self.path, manifest, arrays)
        self.journal.unlink(missing_ok=True)

    def record(self, row: int, agent: int, value: float, error: str | None) -> None:
        """One evaluation has ended."""
        line = {"row": row, "agent": agent, "value": value.hex(), "error": error}
        with self.journal.open("a") as file:
            # A line of its own, even after one that a kill cut off.
            file.write("\n" + json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def recorded(self, row: int) -> dict[int, tuple[float, str | None]]:
        """Value and error of each agent whose evaluation in `row` had ended."""
        if not self.journal.exists():
            return {}
        ended = {}
        for text in self.journal.read_text(errors="replace").splitlines():
            try:
                line = json.loads(text)
                if line["row"] == row:
                    ended[int(line["agent"])] = float.fromhex(line["value"]), line["error"]
            except (ValueError, TypeError, KeyError):
                continue  # empty, or cut off by a kill: that evaluation was in flight
        return ended
