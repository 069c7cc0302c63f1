"""An owner's own ledger, in a file of its folder that all federations share and that only grows.

A server charges for its own federation alone. An owner may be asked in several federations with the same
data, whose losses add up. So it charges the mechanism of each release that its message may be part of,
before the message leaves. The file has the last round that was charged in each federation. So a
request that is answered again is charged once. Nothing can tell where the file was removed, or put back.
"""

import dataclasses
import logging
from pathlib import Path

from jaxbo._check import is_a, require
from jaxbo.algos.base.federated import AbstractFederated
from jaxbo.federation.wire import RefusedError
from jaxbo.privacy.ledger import BudgetError, Ledger, loss_so_far
from jaxbo.privacy.mechanism import Mechanism
from jaxbo.runs import _archive
from jaxbo.runs._archive import CheckpointError
from jaxbo.runs._lock import Hold
from jaxbo.runs._released import sealed, unsealed
from jaxbo.runs._simulation import is_private

log = logging.getLogger(__name__)

#: The file in an owner's folder. It is named as counts of releases are.
NAME = "data.released"
#: The name of the rounds in it.
ROUNDS = "rounds"


def check_spending(algorithm: AbstractFederated, ledger: Ledger | None) -> None:
    """`ValueError` for a ledger of a method whose messages no release covers."""
    if ledger is None:
        return
    is_a("ledger", ledger, Ledger)
    require(
        is_private(algorithm.released(0)),
        f"there is a ledger, but {type(algorithm).__name__} releases nothing private: no ledger knows "
        "the cost of its messages.",
    )


class Spending:
    """The charges of an owner's data, in the file of its folder."""

    def __init__(self, folder: Path, ledger: Ledger | None):
        self.path, self.ledger = folder / NAME, ledger
        require(
            ledger is not None or not self.path.exists(),
            f"the data of this folder has a ledger, {self.path}: give the owner a ledger with the "
            "budget of this data.",
        )

    def check(self, federation: str, round: int, release: Mechanism | None) -> None:
        """`RefusedError` if the budget does not pay for a message; nothing is charged."""
        self._charge(federation, round, release, save=False)

    def charge(self, federation: str, round: int, release: Mechanism | None) -> None:
        """Charges for a message of the round, unless it has been. `RefusedError` beyond the budget."""
        self._charge(federation, round, release, save=True)

    def _charge(
        self, federation: str, round: int, release: Mechanism | None, *, save: bool
    ) -> None:
        if self.ledger is None or release is None:
            return
        with Hold(self.path).waited_for():
            spent, rounds = self._read(self.ledger)
            if rounds.get(federation) == round:
                return
            try:
                after = spent.charge(release)
            except BudgetError:
                raise RefusedError(_beyond(spent)) from None
            if save:
                text = sealed(after, **{ROUNDS: rounds | {federation: round}})
                _archive.replace(self.path, lambda file: file.write(text.encode()))
                log.info("round %d of federation %s: %s", round + 1, federation, loss_so_far(after))

    def _read(self, begun: Ledger) -> tuple[Ledger, dict[str, int]]:
        """The charges so far, and the last round charged in each federation."""
        try:
            counted, more = unsealed(self.path.read_text(), ROUNDS)
            rounds = {str(name): int(round) for name, round in dict(more[ROUNDS]).items()}
        except FileNotFoundError:
            return begun, {}
        except (ValueError, TypeError) as error:
            raise CheckpointError(
                f"{self.path} is damaged and no longer counts the charges of this data: put back its "
                "newest copy. Where there is none, remove it, and give a ledger that is charged for all "
                "releases there can have been."
            ) from error
        if not counted.covers(begun):
            raise CheckpointError(
                f"{self.path} has fewer charges than the ledger that the owner was given: put back its "
                "newest copy."
            )
        return dataclasses.replace(begun, events=counted.events), rounds


def _beyond(spent: Ledger) -> str:
    return (
        f"the budget of this owner's data is epsilon {spent.budget:.4g} at delta {spent.delta:.4g}: "
        f"{spent.releases} releases have spent {spent.epsilon():.4g}, and another would exceed it."
    )
