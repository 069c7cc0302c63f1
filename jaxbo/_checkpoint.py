"""What a driven run needs to survive a kill: one file a round, one line an evaluation.

`PATH` is a NumPy archive with a manifest: the rows told so far, and the queries of the row that is
being evaluated. It is written to a temporary name and renamed. `PATH.open` gets one line of JSON for
each evaluation of that row as it ends. So a kill loses the evaluations in flight and nothing else.
"""

import hashlib
import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np

#: Raised by one when the layout below changes.
FORMAT = 1


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: corrupt, or of another run, algorithm or version."""


class Rows(eqx.Module):
    """The first `told` rows are complete; one more may have queries only."""

    told: int
    queries: np.ndarray
    values: np.ndarray
    info: list[np.ndarray]
    failures: Sequence[tuple[int, int, str]]


def fingerprint(**parts: Any) -> dict[str, str]:
    """A short digest of each part's structure and numbers."""
    return {name: _digest(part) for name, part in parts.items()}


def _digest(part: Any) -> str:
    leaves, structure = jax.tree.flatten(part)
    digest = hashlib.sha256(str(structure).encode())
    for leaf in leaves:
        if eqx.is_array(leaf) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jr.key_data(leaf)
        array = np.asarray(leaf)
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes() if array.dtype != object else repr(leaf).encode())
    return digest.hexdigest()[:16]


class Checkpoint:
    """The two files of one run. `identity` says which run: a file of another one is refused."""

    def __init__(self, path: str | os.PathLike, identity: dict[str, str]):
        self.path = Path(path)
        self.journal = self.path.with_name(self.path.name + ".open")
        self.identity = identity

    def load(self) -> Rows | None:
        """What was saved, or None if nothing was. `CheckpointError` if it cannot be used."""
        if not self.path.exists():
            return None
        try:
            with np.load(self.path, allow_pickle=False) as archive:
                manifest = json.loads(str(archive["manifest"]))
                info = [archive[f"info_{i}"] for i in range(manifest["info"])]
                queries, values = archive["queries"], archive["values"]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise CheckpointError(
                f"{self.path} is not a readable checkpoint ({error}); "
                "restore it from a copy, or remove it to start again."
            ) from error
        self._check(manifest)
        failures = [(row, agent, text) for row, agent, text in manifest["failures"]]
        return Rows(manifest["told"], queries, values, info, failures)

    def _check(self, manifest: dict[str, Any]) -> None:
        if manifest.get("format") != FORMAT:
            raise CheckpointError(
                f"{self.path} has format {manifest.get('format')}, this version reads {FORMAT}; "
                "finish the run with the version that began it, or remove the file."
            )
        differing = [n for n, d in self.identity.items() if manifest["identity"].get(n) != d]
        if differing:
            raise CheckpointError(
                f"{self.path} belongs to a run with another {' and '.join(differing)}; "
                "give the same ones as before to continue it, or another path to start anew."
            )

    def save(self, rows: Rows) -> None:
        """Replaces the file in one step, and begins a new journal."""
        manifest = {
            "format": FORMAT,
            "identity": self.identity,
            "told": rows.told,
            "info": len(rows.info),
            "failures": rows.failures,
        }
        arrays = {f"info_{i}": leaf for i, leaf in enumerate(rows.info)}
        temporary = self.path.with_name(self.path.name + ".tmp")
        with temporary.open("wb") as file:
            np.savez(
                file,
                allow_pickle=False,
                manifest=np.array(json.dumps(manifest)),
                queries=rows.queries,
                values=rows.values,
                **arrays,
            )
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)
        self.journal.unlink(missing_ok=True)

    def record(self, row: int, agent: int, value: float, error: str | None) -> None:
        """One evaluation has ended."""
        line = {"row": row, "agent": agent, "value": value.hex(), "error": error}
        with self.journal.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def recorded(self, row: int) -> dict[int, tuple[float, str | None]]:
        """Value and error of each agent whose evaluation in `row` had ended."""
        if not self.journal.exists():
            return {}
        ended = {}
        for text in self.journal.read_text().splitlines():
            try:
                line = json.loads(text)
            except json.JSONDecodeError:
                continue  # the kill came in the middle of a line: that evaluation was in flight
            if line["row"] == row:
                ended[line["agent"]] = (float.fromhex(line["value"]), line["error"])
        return ended
