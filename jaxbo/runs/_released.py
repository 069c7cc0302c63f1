"""A count of private releases, in a file beside the checkpoint that only grows.

An older copy of a checkpoint, or a new beginning without it, would release again at nobody's charge. So
`PATH.released` has all charges there have been, and a sum that shows damage. It is written after the
checkpoint, and before anybody hears of the release. A checkpoint that has fewer charges is refused.
Nothing can tell where both files were copied or removed.
"""

import json
import zlib
from pathlib import Path
from typing import Any

from jaxbo._check import require
from jaxbo.privacy.ledger import Ledger
from jaxbo.runs import _archive
from jaxbo.runs._archive import CheckpointError, DamagedError, OtherRunError


class Released:
    """All charges that have been saved in the checkpoint `path`."""

    def __init__(self, path: Path):
        self.path, self.counter = path, path.with_name(path.name + ".released")

    def open(self, begun: Ledger, saved: Ledger | None) -> None:
        """`CheckpointError` if there have been more charges than `saved`, the charges in the checkpoint.

        `begun` are the charges that the run began with, and `saved` is None without a checkpoint.
        """
        counted, mine = self._counted(), saved or begun
        if counted is None and not begun.covers(mine):
            raise self.lost(f"is a copy without {self.counter.name}, which counts its releases")
        if counted is not None and not mine.covers(counted):
            fewer = f"with {mine.releases} of {counted.releases} releases"
            raise self.lost("has been removed" if saved is None else f"is an older copy, {fewer}")
        self.grow(mine)

    def grow(self, ledger: Ledger) -> None:
        """Counts charges that the checkpoint has; `CheckpointError` if others have been counted."""
        counted = self._counted()
        if counted is not None and not ledger.covers(counted):
            raise self.lost(f"has fewer releases than {self.counter.name} counts")
        if counted is None or not counted.covers(ledger):
            _archive.replace(self.counter, lambda file: file.write(sealed(ledger).encode()))

    def lost(self, what: str) -> CheckpointError:
        """The error for a checkpoint that something has happened to."""
        return CheckpointError(
            f"{self.path} {what}: neither an older copy nor a new beginning keeps what the ledger "
            "promised. Put back the newest file there is. Where it is gone, begin under another path "
            f"{self._spent}"
        )

    def unusable(self, error: DamagedError | OtherRunError) -> CheckpointError:
        """The error to raise in place of `error`, which knows of no ledger."""
        if isinstance(error, DamagedError):
            return self.lost("cannot be read")
        return CheckpointError(
            f"{error.args[0]}. Another run begins under another path {self._spent}"
        )

    @property
    def _spent(self) -> str:
        """How a ledger begins that forgets nothing."""
        return f"with what has been spent: ledger.charged(text), with the text of {self.counter}."

    def _counted(self) -> Ledger | None:
        try:
            counted, _ = unsealed(self.counter.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise CheckpointError(
                f"{self.counter} is damaged and counts the releases of {self.path} no longer: put back "
                "its newest copy. Where there is none, begin under another path with a ledger that is "
                "charged for all releases there can have been."
            ) from error
        return counted


def sealed(ledger: Ledger, **more: Any) -> str:
    """Its charges as a text that `Ledger.charged` reads, with their sum: any change is noticed."""
    fields = json.loads(ledger.charges()) | more
    return json.dumps(fields | {"sum": zlib.crc32(json.dumps(fields).encode())})


def unsealed(text: str, *names: str) -> tuple[Ledger, dict[str, Any]]:
    """The charges in a sealed text, and what else is sealed in it. `ValueError` for any other text."""
    counted, fields = Ledger.from_json(text), json.loads(text)
    require(set(names) <= set(fields), "something is missing")
    more = {name: fields[name] for name in names}
    require(text == sealed(counted, **more), "its sum does not fit")
    return counted, more
