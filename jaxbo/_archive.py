"""A NumPy archive with a manifest: written whole or not at all, for its owner's eyes."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: corrupt, or of another run, algorithm or version."""


class DamagedError(CheckpointError):
    """A checkpoint that cannot be read, whatever run it is of."""


def write(path: Path, manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Replaces the file in one step. The manifest is JSON."""
    text = np.array(json.dumps(manifest))
    replace(path, lambda file: np.savez(file, allow_pickle=False, manifest=text, **arrays))


def replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Replaces the file in one step by what `write` writes."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.touch(mode=0o600)  # for the owner alone
    with temporary.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    if os.name == "posix":  # or a power cut may take the new name back
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Manifest and arrays. `CheckpointError` for a file that cannot be read."""
    try:
        # Opened here, because NumPy leaves a damaged file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = dict(archive)
            return dict(json.loads(str(arrays.pop("manifest")))), arrays
    # A damaged archive can make its reader raise nearly anything.
    except Exception as error:
        raise damaged(path, error) from error


def check_format(path: Path, manifest: Mapping[str, Any], mine: int) -> None:
    """`CheckpointError` for a file that another version has written."""
    if "format" not in manifest:
        raise damaged(path, KeyError("format"))
    if manifest["format"] != mine:
        raise CheckpointError(
            f"{path} has format {manifest['format']}, this version reads {mine}; "
            "finish the run with the version that began it, or give another path."
        )


def check_same(path: Path, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """`CheckpointError` with the names of what the file was made with and is different now."""
    differing = [name for name, value in mine.items() if theirs.get(name) != value]
    if differing:
        raise CheckpointError(
            f"{path} belongs to a run with another {' and '.join(differing)}; "
            "give the same ones as before to continue it, or another path to start anew."
        )


def damaged(path: Path, error: Exception) -> DamagedError:
    """What to raise for a file without what it must have."""
    return DamagedError(
        f"{path} is not a readable checkpoint ({error!r}); "
        "restore it from a copy, or remove it to start again."
    )
