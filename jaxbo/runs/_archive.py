"""A NumPy archive with a manifest: written whole or not at all, for its owner's eyes."""

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from jaxbo._check import require, shown


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: it is corrupt, or of another run, algorithm or version.

    Example:
        >>> import jaxbo
        >>> issubclass(jaxbo.CheckpointError, ValueError)
        True
    """


class DamagedError(CheckpointError):
    """A checkpoint that cannot be read, whatever run it is of."""


class OtherRunError(CheckpointError):
    """A checkpoint of another run or version: how to go on with it, and where to begin another."""

    def __str__(self) -> str:
        return f"{self.args[0]}, or give another path to begin anew."


#: Files beside a checkpoint, named after it: its lock, its journal, its next version, the count of its
#: releases, and the evaluation under way.
BESIDE = (".lock", ".open", ".tmp", ".released", ".begun")


def located(path: str | os.PathLike) -> Path:
    """The absolute path of a checkpoint. Links are followed, so that the target is replaced.

    `ValueError` if there is no such folder, or nothing can be written in it.
    """
    require(
        isinstance(path, str | os.PathLike),
        f"checkpoint must be a path of a file, got {shown(path)}.",
    )
    try:
        found = Path(path).resolve()
    except (OSError, RuntimeError) as error:  # links in a circle, before Python 3.13
        raise ValueError(f"the checkpoint {path} cannot be found: {error}") from error
    folder = found.parent
    require(not found.is_symlink(), f"the checkpoint {found} is a link in a circle.")
    require(folder.is_dir(), f"the checkpoint's folder {folder} does not exist.")
    require(not found.is_dir(), f"the checkpoint {found} is a folder: give the path of a file.")
    require(
        found.suffix not in BESIDE,
        f"the checkpoint's name must not end in {found.suffix}, as files beside checkpoints do.",
    )
    require(
        os.access(folder, os.W_OK | os.X_OK),
        f"nothing can be written in the checkpoint's folder {folder}: give another folder. A checkpoint "
        "that exists there can be copied.",
    )
    return found


def private(name: str, flags: int) -> int:
    """Opens a file for its owner alone: an objective's values may be private."""
    return os.open(name, flags, 0o600)


def sync(folder: Path) -> None:
    """Brings new names to the disk: a power cut may take them back otherwise."""
    if os.name == "posix":
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def write(path: Path, manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Replaces the file in one step. The manifest is JSON."""
    text = np.array(json.dumps(manifest))
    replace(path, lambda file: np.savez(file, allow_pickle=False, manifest=text, **arrays))


def replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Replaces the file in one step by what `write` writes."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)  # of a process that was killed, or a link to elsewhere
    try:
        with open(temporary, "xb", opener=private) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # a disk that is full needs the room
            temporary.unlink()
        raise
    sync(path.parent)


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Manifest and arrays. `CheckpointError` for a file that cannot be read."""
    try:
        # Opened here, because NumPy leaves a damaged file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            # NumPy reads as much as an array's header says, and its sum is checked at its end only.
            require(archive.zip.testzip() is None, "a sum does not fit")
            arrays = dict(archive)
            return dict(json.loads(str(arrays.pop("manifest")))), arrays
    # A damaged archive can make its reader raise nearly anything.
    except Exception as error:
        raise damaged(path, error) from error


def check_format(path: Path, manifest: Mapping[str, Any], kind: str, mine: int) -> None:
    """`CheckpointError` for a file of something else, or that another version has written."""
    if "format" not in manifest:
        raise damaged(path, KeyError("format"))
    theirs = manifest.get("kind", kind)  # early versions did not say
    if theirs != kind:
        raise OtherRunError(
            f"{path} is the file of {theirs} and not of {kind}: go on with it as such"
        )
    if manifest["format"] != mine:
        raise OtherRunError(
            f"{path} has format {manifest['format']}, this version reads {mine}; "
            "finish the run with the version that began it"
        )


def damaged(path: Path, error: Exception) -> DamagedError:
    """The error to raise for a file without the parts that it must have."""
    return DamagedError(
        f"{path} is not a readable checkpoint ({error!r}); "
        "restore it from a copy, or remove it to start again."
    )
