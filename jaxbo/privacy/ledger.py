"""A ledger of private releases: charged before each release, and saved with it."""

import bisect
import dataclasses
import json
import math
from collections.abc import Sequence
from numbers import Real

from jaxbo._check import is_a, require, shown
from jaxbo.privacy.accounting import (
    BY_NAME,
    Accountant,
    Event,
    check_accountant,
    check_delta,
    event,
    loss,
    number_of_releases,
)
from jaxbo.privacy.mechanism import Mechanism, Relation

#: Raised by one when the layout of a saved ledger changes.
FORMAT = 1


class BudgetError(ValueError):
    """A release would exceed the budget. It has not been charged and must not be made.

    Example:
        >>> import jaxbo
        >>> issubclass(jaxbo.BudgetError, ValueError)
        True
    """


@dataclasses.dataclass(frozen=True)
class Ledger:
    """All private releases so far, and a budget that no release may exceed. It is immutable.

    Charge before the release, and keep the new ledger before the result is used:

        ledger = ledger.charge(mechanism)       BudgetError: do not release
        broadcast = mechanism.release(secret, ...)

    Nobody may know the `secret` key, and it must be used for nothing else, ever: noise that is added to
    two sums is the difference of the sums. A run that is resumed goes on with its ledger, `from_json`,
    and releases nothing twice: a broadcast that was released is stored, and used again without a
    charge. An older copy of a saved ledger has forgotten charges: `covers` tells.

    Args:
        delta: δ, in (0, 1).
        budget: The largest ε that is allowed at `delta`. Infinite: any.
        accountant: The accountant. A ledger with an accountant of your own cannot be saved. Default:
            `tightest`.
        events: The releases so far.

    Raises:
        ValueError: A number is out of range.

    Example:
        >>> import jaxbo
        >>> mechanism = jaxbo.Mechanism(z=2.0, S=1.0, sampling=jaxbo.Poisson(0.1))
        >>> ledger = jaxbo.Ledger(1e-5, budget=1.0, accountant=jaxbo.accounting.moments)
        >>> ledger.charge(mechanism, rounds=5).releases, ledger.affords(mechanism, rounds=6)
        (5, False)
    """

    delta: float
    budget: float = math.inf
    accountant: Accountant | None = None
    events: tuple[Event, ...] = ()

    def __post_init__(self):
        check_delta(self.delta)
        require(
            isinstance(self.budget, Real) and self.budget > 0,
            f"budget must be a positive epsilon, got {self.budget!r:.60}.",
        )
        check_accountant(self.accountant)
        require(
            isinstance(self.events, tuple) and all(isinstance(e, Event) for e in self.events),
            f"events must be a tuple of Event, got {self.events!r:.60}.",
        )

    @property
    def releases(self) -> int:
        """The number of releases so far."""
        return number_of_releases(self.events)

    def epsilon(self, delta: float | None = None) -> float:
        """The privacy loss so far.

        Args:
            delta: Another δ than the ledger's. Default: the ledger's.

        Returns:
            ε.
        """
        return loss(self.accountant, self.events, self.delta if delta is None else delta)

    def charge(self, mechanism: Mechanism, rounds: int = 1) -> "Ledger":
        """Charges releases before they are made.

        Args:
            mechanism: The mechanism that releases.
            rounds: Number of releases.

        Returns:
            The ledger after them.

        Raises:
            BudgetError: They exceed the budget.
        """
        charged = dataclasses.replace(self, events=_append(self.events, event(mechanism, rounds)))
        if self.budget < math.inf and (after := charged.epsilon()) > self.budget:
            raise BudgetError(
                f"release {charged.releases} would bring epsilon to {after:.4g} at delta "
                f"{self.delta:.4g}, above the budget of {self.budget:.4g}; {self.releases} releases "
                f"have spent {self.epsilon():.4g}. Go on without releases, add noise, or allow more."
            )
        return charged

    def affords(self, mechanism: Mechanism, rounds: int = 1) -> bool:
        """Says whether `charge` would accept releases.

        Args:
            mechanism: The mechanism that releases.
            rounds: Number of releases.

        Returns:
            Whether it would.
        """
        try:
            self.charge(mechanism, rounds)
        except BudgetError:
            return False
        return True

    def to_json(self) -> str:
        """The ledger as a line of text that `from_json` reads. `ValueError` for an accountant of your
        own.
        """
        name = None if self.accountant is None else getattr(self.accountant, "__name__", "")
        require(
            name is None or BY_NAME.get(name) is self.accountant,
            f"only the accountants {', '.join(BY_NAME)} can be saved, got {self.accountant}.",
        )
        events = [
            {"relation": e.relation.value, "q": float(e.q), "z": float(e.z), "count": int(e.count)}
            for e in self.events
        ]
        budget = float(self.budget) if self.budget < math.inf else None
        fields = {
            "delta": float(self.delta),
            "budget": budget,
            "accountant": name,
            "events": events,
        }
        return json.dumps({"format": FORMAT, **fields}, allow_nan=False)

    def covers(self, other: "Ledger") -> bool:
        """Says whether this ledger has all charges of another, and perhaps more.

        Args:
            other: The other ledger.

        Returns:
            Whether it has.

        Raises:
            ValueError: `other` is not a ledger.
        """
        is_a("other", other, Ledger)
        mine = {_kind(e): e.count for e in self.events}
        return all(mine.get(_kind(e), 0) >= e.count for e in other.events)

    def charges(self) -> str:
        """All charges as text for `charged`, without the budget."""
        return Ledger(self.delta, events=self.events).to_json()

    def charged(self, charges: str) -> "Ledger":
        """This ledger with the charges of a run that it began, instead of its own.

        Args:
            charges: The charges, as `charges` writes them.

        Returns:
            The ledger.

        Raises:
            ValueError: It is not such a text.
        """
        require(isinstance(charges, str), f"charges must be text, got {shown(charges)}.")
        return dataclasses.replace(self, events=Ledger.from_json(charges).events)

    @classmethod
    def from_json(cls, text: str) -> "Ledger":
        """Reads a ledger that was saved.

        Args:
            text: The text that `to_json` wrote.

        Returns:
            The ledger.

        Raises:
            ValueError: It is any other text. The result is never an empty ledger.
        """
        require(
            isinstance(text, str | bytes | bytearray),
            f"text must be a saved ledger, as to_json writes it, got {shown(text)}.",
        )
        try:
            saved = json.loads(text)
            require(saved["format"] == FORMAT, f"format {saved['format']}, expected {FORMAT}")
            name, budget = saved["accountant"], saved["budget"]
            events = tuple(
                Event(Relation(e["relation"]), float(e["q"]), float(e["z"]), e["count"])
                for e in saved["events"]
            )
            return cls(
                float(saved["delta"]),
                math.inf if budget is None else float(budget),
                None if name is None else BY_NAME[name],
                events,
            )
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"this text is not a saved ledger ({error!r}). A run that goes on without its ledger, "
                "or with an older copy of it, has no guarantee."
            ) from error


def loss_so_far(ledger: Ledger) -> str:
    """The privacy loss so far and the rest of the budget, for a log."""
    spent = ledger.epsilon()
    left = f", {ledger.budget - spent:.3g} left" if ledger.budget < math.inf else ""
    return f"epsilon {spent:.3g} spent{left}"


def check_budget(ledger: Ledger | None, releases: Sequence[Mechanism | None]) -> None:
    """`BudgetError` unless a ledger pays for all of a run's rounds. None is a round without a release.

    `ValueError` for a ledger of a method that releases nothing private.
    """
    if ledger is None:
        return
    is_a("ledger", ledger, Ledger)
    paid = [mechanism for mechanism in releases if mechanism is not None]
    require(
        len(paid) > 0 or not releases,
        "there is a ledger, but nothing that this method releases is private: leave it out.",
    )
    if not _affords(ledger, paid):
        enough = bisect.bisect_left(
            range(len(paid)), True, key=lambda n: not _affords(ledger, paid[: n + 1])
        )
        raise BudgetError(
            f"the budget of epsilon {ledger.budget:.4g} at delta {ledger.delta:.4g} pays for {enough} of "
            f"the {len(paid)} releases asked for: with releases={enough} agents go on by themselves "
            "afterwards; or add noise, or ask for fewer rounds."
        )


def _affords(ledger: Ledger, mechanisms: Sequence[Mechanism]) -> bool:
    """Whether all of them can be charged; equal releases at once."""
    counts: dict[Event, tuple[Mechanism, int]] = {}
    for mechanism in mechanisms:
        alike = event(mechanism)
        counts[alike] = mechanism, counts.get(alike, (mechanism, 0))[1] + 1
    try:
        for mechanism, count in counts.values():
            ledger = ledger.charge(mechanism, count)
    except BudgetError:
        return False
    return True


def _kind(charged: Event) -> tuple[Relation, float, float]:
    return charged.relation, charged.q, charged.z


def _append(events: tuple[Event, ...], new: Event) -> tuple[Event, ...]:
    """Equal releases are counted in the same event, wherever it stands: the order does not matter."""
    if new.count == 0:
        return events
    for i, old in enumerate(events):
        if _kind(old) == _kind(new):
            merged = dataclasses.replace(old, count=old.count + new.count)
            return (*events[:i], merged, *events[i + 1 :])
    return (*events, new)
