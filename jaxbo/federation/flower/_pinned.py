"""The app that an owner has read and runs, whatever the server sends.

An app travels as a bundle, a zip file, and its code runs on the owner's machine. An owner that has a copy
of its own compares the server's with it, file by file, and runs its own. How a zip file is packed does
not matter.
"""

import hashlib
import io
import zipfile
from pathlib import Path
from typing import NamedTuple

from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import get_fab_metadata
from flwr.supercore.fab import Fab

from jaxbo._check import require

#: What Flower itself writes into a bundle: a list of the other files.
_OF_FLOWER = ".info/"
#: So many files that differ are named.
_NAMED = 3


class PinnedApp(NamedTuple):
    """An owner's copy of an app: its name, its version, and the bundle that is run."""

    name: str
    version: str
    fab: Fab

    def refusal(self, theirs: bytes) -> str | None:
        """Why the server's bundle is not run, with both versions; None if it is the owner's own."""
        mine = f"this owner runs {self.name} {self.version} alone"
        try:
            name, version = get_fab_metadata(theirs)
            files = _files(theirs)
        # Anybody may have made it: reading it can raise nearly anything.
        except Exception as error:
            return f"the server's app cannot be read ({type(error).__name__}); {mine}."
        own = _files(self.fab.content)
        differing = sorted(file for file in {**own, **files} if own.get(file) != files.get(file))
        if not differing:
            return None
        named = ", ".join(file[:60] for file in differing[:_NAMED])
        named += ", …" if len(differing) > _NAMED else ""
        return f"the server's app is {name[:60]} {version[:60]}, {mine}: {named} differ."


def read(path: str) -> PinnedApp:
    """The app in a folder or in a bundle, as `flwr build` makes it. `ValueError` for anything else."""
    place = Path(path).expanduser()
    require(
        place.is_dir() or place.is_file(),
        f"--app must be your copy of the app, a folder or a .fab file, got {path}.",
    )
    try:
        content = build_fab_from_disk(place) if place.is_dir() else place.read_bytes()
        name, version = get_fab_metadata(content)
    except Exception as error:
        raise ValueError(f"--app {path} is no app of Flower's: {error}") from error
    return PinnedApp(name, version, Fab(hashlib.sha256(content).hexdigest(), content, {}))


def _files(bundle: bytes) -> dict[str, str]:
    """The files of a bundle, and their digests."""
    with zipfile.ZipFile(io.BytesIO(bundle)) as packed:
        names = [name for name in packed.namelist() if not name.startswith(_OF_FLOWER)]
        require(len(set(names)) == len(names), "a bundle with two files of one name.")
        return {name: hashlib.sha256(packed.read(name)).hexdigest() for name in names}
