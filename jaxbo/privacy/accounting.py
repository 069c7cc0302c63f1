"""The privacy loss of a run, and the noise that a budget needs: on the host, in float64.

    (ε, δ):    P(what was released ∈ A) ≤ e^ε P'(what was released ∈ A) + δ
    moments    ε = min over λ = 1, ..., 32 of (Σ α_λ(q, z) - log δ) / λ,  summed over all releases,
               α_λ = log Σ_k C(λ+1, k) (1-q)^(λ+1-k) q^k exp(k (k-1) / 2z²)
    renyi      moments of a finer grid of orders, not only whole ones, and a sharper step to ε
    pld        the distribution of the privacy loss itself, convolved; above ε = 0.01 its error is
               below 0.1 %; infinite for δ below 1e-15, where `renyi` still has a figure

for any two runs that `jaxbo.privacy.mechanism` calls neighbors. Each accountant is an upper bound;
`tightest` is the sharpest that is valid. `moments` is the paper's (Abadi et al., 2016; it gives the
privacy losses printed in DP-FTS-DE) and needs nothing but SciPy. The other two are Google's
`dp-accounting`, which the extra `privacy` installs.

z, q and how agents are sampled are read off the mechanism that draws and adds the noise. For every round
they must be settled before the run (a schedule is). If noise is chosen after earlier releases have been
seen, losses do not add up like this. S may follow earlier releases.
"""

import contextlib
import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from typing import Any, TypeAlias

import numpy as np

from jaxbo._check import flag, is_a, require, shown, takes, whole
from jaxbo.privacy.mechanism import AbstractSampling, FixedSize, Mechanism, Relation
from jaxbo.privacy.planning import PrivacyPlan, planned

#: λ of the paper's moments accountant.
MOMENTS = range(1, 33)
#: A finer grid of the privacy loss takes gigabytes, and changes ε by less than 1e-10 a round.
_LEAST_INTERVAL = 2.0**-17
#: Relative width to which `noise_for` closes its bracket.
_CLOSE = 1e-5
#: Noise outside of this range is not searched for: no budget in use needs it.
_LEAST_NOISE, _MOST_NOISE = 2.0**-7, 2.0**20
#: To the share of a roster of this size the share of agents that are drawn is rounded up.
_ROSTER = 10**12
#: More rounds than this are not searched for, nor accounted for by `pld`.
_MOST_ROUNDS = 10**7
#: The largest grid of the privacy loss that `pld` makes: 3 gigabytes, and ten seconds.
_MOST_CELLS = 2.0**26
#: δ of all owners together, unless another one is given.
_TOGETHER = 1e-3


@dataclasses.dataclass(frozen=True)
class Event:
    """Several equal releases.

    Args:
        relation: The two runs that must be hard to tell apart.
        q: The probability that an agent is drawn, in (0, 1].
        z: Standard deviation of the noise over the sensitivity, positive. The sensitivity is the
            contribution of one agent, whatever the relation.
        count: Number of releases, at least 0.

    Raises:
        ValueError: A number is out of range.

    Example:
        >>> import jaxbo
        >>> mechanism = jaxbo.Mechanism(z=2.0, S=1.0, sampling=jaxbo.Poisson(0.5))
        >>> event = jaxbo.accounting.event(mechanism, rounds=10)
        >>> event.q, event.z, event.count
        (0.5, 2.0, 10)
    """

    relation: Relation
    q: float
    z: float
    count: int = 1

    def __post_init__(self):
        is_a("relation", self.relation, Relation)
        require(
            isinstance(self.q, Real) and 0 < self.q <= 1,
            f"q must lie in (0, 1], got {shown(self.q)}: nothing is sampled else.",
        )
        require(
            isinstance(self.z, Real) and 0 < self.z < math.inf,
            f"z must be positive and finite, got {shown(self.z)}: without noise nothing is private.",
        )
        whole("count", self.count, most=math.inf)


Accountant: TypeAlias = Callable[[Sequence[Event], float], float]


def event(mechanism: Mechanism, rounds: int = 1) -> Event:
    """The releases of a mechanism, as accountants take them.

    Args:
        mechanism: The mechanism, whose numbers are not arrays.
        rounds: Number of releases, at least 0.

    Returns:
        The event.

    Raises:
        ValueError: A number of the mechanism is an array, or out of range.

    Example:
        >>> import jaxbo
        >>> mechanism = jaxbo.Mechanism(z=2.0, S=1.0, sampling=jaxbo.Poisson(0.5))
        >>> jaxbo.accounting.event(mechanism).count
        1
    """
    is_a("mechanism", mechanism, Mechanism)
    whole("rounds", rounds, most=math.inf)
    relation, q = _sampling(mechanism.sampling)
    return Event(relation, q, _number("z", mechanism.z), rounds)


# ---------------------------------------------------------------------------------- accountants


def moments(events: Sequence[Event], delta: float) -> float:
    """ε by the paper's accountant: whole moments 1 to 32, Poisson sampling.

    It cannot report less than log(1/δ) / 32.

    Args:
        events: All releases.
        delta: δ, in (0, 1).

    Returns:
        An upper bound on ε.

    Raises:
        ValueError: Sampling is of a fixed size, or `delta` is out of range.

    Example:
        >>> import jaxbo
        >>> mechanism = jaxbo.Mechanism(z=2.0, S=1.0, sampling=jaxbo.Poisson(0.1))
        >>> event = jaxbo.accounting.event(mechanism, rounds=10)
        >>> round(jaxbo.accounting.moments([event], delta=1e-5), 3)
        1.203
    """
    check_delta(delta)
    _only_zero_out(events, "moments")
    if not number_of_releases(events):
        return 0.0
    total = sum(e.count * _log_moments(e.q, e.z) for e in events)
    return float(np.min((total - math.log(delta)) / np.asarray(MOMENTS)))


def renyi(events: Sequence[Event], delta: float) -> float:
    """ε by Rényi differential privacy, the only accountant here for sampling of a fixed size.

    If both kinds of sampling are used, ε is for `Relation.ZERO_OUT`, which either relation implies. It
    needs the extra `privacy`.

    Args:
        events: All releases.
        delta: δ, in (0, 1).

    Returns:
        An upper bound on ε.

    Raises:
        ValueError: `delta` is out of range.

    Example:
        >>> import jaxbo
        >>> mechanism = jaxbo.Mechanism(z=2.0, S=1.0, sampling=jaxbo.Poisson(0.1))
        >>> event = jaxbo.accounting.event(mechanism, rounds=10)
        >>> round(jaxbo.accounting.renyi([event], delta=1e-5), 2)
        0.94
    """
    check_delta(delta)
    _check_events(events)
    rdp = _dp_accounting("renyi").rdp
    if not number_of_releases(events):
        return 0.0
    total = sum(_renyi_curve(e) for e in events if e.count)
    value, _ = rdp.compute_epsilon(rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS, total, delta)
    return float(value)


def pld(events: Sequence[Event], delta: float) -> float:
    """ε by the distribution of the privacy loss, rounded up; Poisson sampling.

    It needs the extra `privacy`.

    Args:
        events: All releases.
        delta: δ, in (0, 1).

    Returns:
        An upper bound on ε.

    Raises:
        ValueError: Sampling is of a fixed size, or the distribution would take gigabytes, because there
            are so many rounds or so little noise.

    Example:
        >>> import jaxbo
        >>> mechanism = jaxbo.Mechanism(z=2.0, S=1.0, sampling=jaxbo.Poisson(0.1))
        >>> event = jaxbo.accounting.event(mechanism, rounds=10)
        >>> round(jaxbo.accounting.pld([event], delta=1e-5), 2)
        0.8
    """
    check_delta(delta)
    _only_zero_out(events, "pld")
    _dp_accounting("pld")
    rounds = number_of_releases(events)
    if not rounds:
        return 0.0
    bound = moments(events, delta)
    interval = _interval(bound, rounds)
    require(
        rounds <= _MOST_ROUNDS and bound / interval <= _MOST_CELLS,
        f"events of {rounds} rounds with an epsilon of up to {bound:.3g} are too much for pld, which "
        "would take gigabytes: give accountant=accounting.renyi, or ask for fewer rounds.",
    )
    return _pld_epsilon(tuple(events), delta, interval)


#: All of them.
BY_NAME: dict[str, Accountant] = {"moments": moments, "renyi": renyi, "pld": pld}


def tightest(events: Sequence[Event]) -> Accountant:
    """The sharpest accountant that is valid: `pld`, or `renyi` if agents are sampled without replacement.

    Args:
        events: All releases.

    Returns:
        The accountant. Its `__name__` names it.

    Raises:
        ValueError: `events` is not a sequence of events.

    Example:
        >>> import jaxbo
        >>> mechanism = jaxbo.Mechanism(z=2.0, S=1.0, sampling=jaxbo.FixedSize(10, agents=100))
        >>> jaxbo.accounting.tightest([jaxbo.accounting.event(mechanism)]).__name__
        'renyi'
    """
    _check_events(events)
    return pld if all(e.relation is Relation.ZERO_OUT for e in events) else renyi


def _log_moments(q: float, z: float) -> np.ndarray:
    """α_λ for every λ: the log of E[(p/p0)^(λ+1)] under p0 = N(0, z²), for p = (1-q) p0 + q N(1, z²).

    The other direction, with p and p0 exchanged, never has larger moments (Mironov, Talwar and
    Zhang, 2019).
    """
    from scipy import special  # late, as importing it takes a third as long as this package

    order = np.asarray(MOMENTS)[:, None] + 1
    k = np.arange(MOMENTS[-1] + 2)[None, :]
    left = np.maximum(order - k, 0)
    terms = (
        special.gammaln(order + 1) - special.gammaln(k + 1) - special.gammaln(left + 1)
        + special.xlog1py(left, -q) + special.xlogy(k, q) + k * (k - 1) / (2 * z**2)
    )  # fmt: skip
    return np.asarray(special.logsumexp(np.where(k <= order, terms, -np.inf), axis=1))


def _renyi_curve(one: Event) -> np.ndarray:
    import dp_accounting
    from dp_accounting import rdp

    if one.relation is Relation.ZERO_OUT:
        relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
        gaussian = dp_accounting.GaussianDpEvent(one.z)
        charged = dp_accounting.PoissonSampledDpEvent(one.q, gaussian)
    else:
        relation = dp_accounting.NeighboringRelation.REPLACE_ONE
        # One message in the place of another moves the sum by two contributions.
        gaussian = dp_accounting.GaussianDpEvent(one.z / 2)
        # Only the ratio of the two sizes matters; rounded up.
        sizes = _ROSTER, math.ceil(one.q * _ROSTER)
        charged = dp_accounting.SampledWithoutReplacementDpEvent(*sizes, gaussian)
    accountant = rdp.RdpAccountant(neighboring_relation=relation)
    with _without_warnings():
        return np.asarray(accountant.compose(charged, one.count).rdp)


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Orders whose series does not converge are left out, which is safe: no line for each of them."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@functools.lru_cache(maxsize=64)
def _pld_epsilon(events: tuple[Event, ...], delta: float, interval: float) -> float:
    composed = functools.reduce(
        lambda one, other: one.compose(other),
        (_loss(e.q, e.z, interval).self_compose(e.count) for e in events if e.count),
    )
    return float(composed.get_epsilon_for_delta(delta))


@functools.lru_cache(maxsize=8)
def _loss(q: float, z: float, interval: float) -> Any:
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        z,
        value_discretization_interval=interval,
        sampling_prob=q,
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
    )


def _interval(bound: float, rounds: int) -> float:
    """Grid of the privacy loss, from an upper bound on ε.

    The error of ε was measured to be 0.1 to 0.7 times rounds * interval². Powers of two, so that
    grids of nearby settings are the same.
    """
    interval = min(bound / 2000, math.sqrt(1e-5 * bound / rounds))
    return 2.0 ** math.floor(math.log2(max(interval, _LEAST_INTERVAL)))


def _dp_accounting(accountant: str) -> Any:
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError as error:
        raise ImportError(
            f'the accountant {accountant} needs dp-accounting: pip install "jaxbo-agents[privacy]"; '
            "or choose accountant=moments, which needs nothing and reports a larger loss for "
            "Poisson sampling."
        ) from error
    return dp_accounting


# ------------------------------------------------------------------------------------ questions


def epsilon(
    mechanism: Mechanism, rounds: int, delta: float, accountant: Accountant | None = None
) -> float:
    """The privacy loss ε of several releases of a mechanism.

    Args:
        mechanism: The mechanism.
        rounds: Number of releases, at least 0.
        delta: δ, in (0, 1).
        accountant: The accountant. Default: `tightest`.

    Returns:
        ε.

    Raises:
        ValueError: δ is out of range, or the mechanism has no noise or arrays for numbers.

    Example:
        >>> import jaxbo
        >>> mechanism = jaxbo.Mechanism(z=2.0, S=1.0, sampling=jaxbo.Poisson(0.1))
        >>> moments = jaxbo.accounting.moments
        >>> round(jaxbo.accounting.epsilon(mechanism, 10, 1e-5, moments), 3)
        1.203
    """
    whole("rounds", rounds)
    return loss(accountant, (event(mechanism, rounds),), delta)


def noise_for(
    epsilon: float,
    delta: float,
    q: float | AbstractSampling,
    rounds: int,
    accountant: Accountant | None = None,
) -> float:
    """The least noise z whose privacy loss stays within a budget, to five digits.

    It is a number that float32 holds, and for q as float32 holds it. So `Mechanism` spends no more than
    was asked for.

    Args:
        epsilon: The budget ε, positive.
        delta: δ, in (0, 1).
        q: Probability that an agent is drawn, in (0, 1], or a sampling.
        rounds: Number of releases, at least 1.
        accountant: The accountant. Default: `tightest`.

    Returns:
        z, the standard deviation of the noise over the sensitivity.

    Raises:
        ValueError: A number is out of range, or no noise up to a million sensitivities is enough.

    Example:
        >>> import jaxbo
        >>> moments = jaxbo.accounting.moments
        >>> round(jaxbo.accounting.noise_for(1.0, 1e-5, 0.1, 10, moments), 3)
        2.256
    """
    _check_epsilon(epsilon)
    check_delta(delta)
    check_accountant(accountant)
    whole("rounds", rounds, least=1, most=math.inf)
    relation, q = _sampling(q)

    def events(z: float) -> tuple[Event, ...]:
        return (Event(relation, q, z, rounds),)

    def enough(z: float) -> bool:
        return loss(accountant, events(z), delta) <= epsilon

    high = 1.0
    if (accountant or tightest(events(high))) is pld:
        high = _close(lambda z: moments(events(z), delta), epsilon, delta)
    while not enough(high):
        high *= 2
        require(
            high <= _MOST_NOISE,
            f"no z up to {_MOST_NOISE:.0f} gives an epsilon of {epsilon} at delta {delta} over {rounds} "
            "rounds; ask for a larger epsilon, or choose an accountant that can report less.",
        )
    while high > _LEAST_NOISE and enough(high / 2):
        high /= 2
    return _bisect(enough, high / 2, high)


def rounds_for(
    mechanism: Mechanism, epsilon: float, delta: float, accountant: Accountant | None = None
) -> int:
    """The number of releases whose privacy loss stays within a budget.

    Args:
        mechanism: The mechanism.
        epsilon: The budget ε, positive.
        delta: δ, in (0, 1).
        accountant: The accountant. Default: `tightest`.

    Returns:
        The number: 0 if not even one release does, and 10^7 at most.

    Raises:
        ValueError: A number is out of range.

    Example:
        >>> import jaxbo
        >>> mechanism = jaxbo.Mechanism(z=2.0, S=1.0, sampling=jaxbo.Poisson(0.1))
        >>> jaxbo.accounting.rounds_for(mechanism, 1.0, 1e-5, jaxbo.accounting.moments)
        5
    """
    _check_epsilon(epsilon)
    one = event(mechanism)

    def within(rounds: int) -> bool:
        return loss(accountant, (dataclasses.replace(one, count=rounds),), delta) <= epsilon

    low, high = 0, 1
    while high < _MOST_ROUNDS and within(high):
        low, high = high, min(2 * high, _MOST_ROUNDS)
    if high == _MOST_ROUNDS and within(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return low


def delta_for(owners: int) -> float:
    """The δ that `plan` takes by default: a thousandth, shared among the owners.

    A mechanism that publishes all that one owner sent, with probability δ for each owner, still is
    (0, δ)-private. So δ must be far below 1 / `owners`. With this δ, the probability that the promise
    of ε fails for anyone at all is at most 0.001.

    Args:
        owners: How many owners there are, 1 or more.

    Returns:
        0.001 / `owners`.

    Raises:
        ValueError: `owners` is no whole number, or below 1.

    Example:
        >>> from jaxbo import accounting
        >>> accounting.delta_for(50)
        2e-05
    """
    whole("owners", owners, least=1, most=math.inf)
    return _TOGETHER / owners


def plan(
    owners: int,
    rounds: int,
    epsilon: float,
    delta: float | None = None,
    *,
    q: float = 1.0,
    size: int = 100,
    regions: int = 1,
    exact: bool = False,
    accountant: Accountant | None = None,
) -> PrivacyPlan:
    """A guide before a federation: the noise that a privacy loss takes, and whether only noise is left.

    The noise is the least that meets ε at δ over all releases. The signal is a message that all owners
    share, as long as clipping lets it (`jaxbo.privacy.planning` has the formulas). `ratio` is signal over
    noise for the best reading of a released mean: below 2, only noise is left. `whole` is that of the
    whole vector.

    For `DPFTSDE`, `size` is the number of features, and `regions` that of its regions, by default 4. In
    its first rounds each owner counts in its own region alone, and the mean of few owners has more
    noise. For `DPLearnedPrior`, `size` is the number of features and 3, and `regions` is 1.

    Args:
        owners: How many owners there are, 1 or more. Absent ones are counted: they add nothing.
        rounds: How many rounds have a release, 1 or more: `releases` of a method.
        epsilon: The largest privacy loss ε of all releases together, positive.
        delta: The probability δ with which the promise may fail, below 1 / `owners`. By default
            `delta_for(owners)`, which is 0.001 / `owners`.
        q: The probability with which an owner is drawn in a round, in (0, 1]. A smaller q sends fewer
            messages and never gives a clearer mean. By default 1: everybody.
        size: Numbers in a message, 1 or more. By default 100.
        regions: Sub-regions of distributed exploration, 1 or more. By default 1, which is none.
        exact: As in `Mechanism`: by default False, the paper's bound on the sensitivity.
        accountant: As in `noise_for`: by default the tightest.

    Returns:
        A frozen `PrivacyPlan`: z, the noise, the ratios. `print` shows it in words, and its method
        `mechanism(S)` makes the mechanism to use.

    Raises:
        ValueError: A number is out of its range, δ is not below 1 / `owners`, or no noise up to a
            million sensitivities is enough.

    Example:
        >>> from jaxbo import accounting
        >>> found = accounting.plan(3, 3, 2.0, accountant=accounting.moments)
        >>> print(found.verdict)
        3 owners at epsilon 2: only noise is left.
        >>> accounting.plan(200, 3, 2.0, accountant=accounting.moments).only_noise
        False
    """
    whole("owners", owners, least=1, most=math.inf)
    whole("size", size, least=1, most=math.inf)
    whole("regions", regions, least=1, most=math.inf)
    flag("exact", exact)
    require(isinstance(q, Real) and 0 < q <= 1, f"q must lie in (0, 1], got {shown(q)}.")
    delta = delta_for(owners) if delta is None else delta
    check_delta(delta)
    require(
        delta * owners < 1,
        f"delta must be below 1 / {owners} owners, got {delta!r}: else it allows to publish all that one "
        f"of them sent. The default is {delta_for(owners):.3g}.",
    )
    z = noise_for(epsilon, delta, q, rounds, accountant)
    used = accountant or tightest([Event(Relation.ZERO_OUT, q, z, rounds)])
    return planned(
        owners=int(owners),
        rounds=int(rounds),
        epsilon=float(epsilon),
        delta=float(delta),
        q=float(q),
        z=z,
        size=int(size),
        regions=int(regions),
        exact=exact,
        accountant=getattr(used, "__name__", "an accountant of one's own"),
    )


def _close(moments: Callable[[float], float], epsilon: float, delta: float) -> float:
    """Noise for which the quick accountant finds about `epsilon`, a power of two.

    With much less noise than is needed `pld` takes gigabytes.
    """
    most = max(epsilon, 2 * math.log(1 / delta) / MOMENTS[-1])  # less it may not be able to report
    z = 1.0
    while z < _MOST_NOISE and moments(z) > most:
        z *= 2
    while z > _LEAST_NOISE and moments(z / 2) <= most:
        z /= 2
    return z


def _bisect(enough: Callable[[float], bool], low: float, high: float) -> float:
    while high - low > _CLOSE * high:
        middle = float(np.float32((low + high) / 2))
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _sampling(q: float | AbstractSampling) -> tuple[Relation, float]:
    if isinstance(q, FixedSize):
        return q.relation, _number("count", q.count) / q.agents
    if isinstance(q, AbstractSampling):
        return q.relation, _number("q", q.q)
    require(
        isinstance(q, Real) and 0 < q <= 1,
        f"q must lie in (0, 1], or be a sampling, got {q!r}: nothing is sampled else.",
    )
    return Relation.ZERO_OUT, max(q, float(np.float32(q)))


def number_of_releases(events: Sequence[Event]) -> int:
    """The number of releases of several events together.

    Args:
        events: The events.

    Returns:
        The number.

    Example:
        >>> import jaxbo
        >>> mechanism = jaxbo.Mechanism(z=2.0, S=1.0, sampling=jaxbo.Poisson(0.1))
        >>> event = jaxbo.accounting.event(mechanism, rounds=10)
        >>> jaxbo.accounting.number_of_releases([event, event])
        20
    """
    return sum(e.count for e in events)


def _number(name: str, value: Any) -> float:
    array = np.asarray(value)
    require(
        array.ndim == 0,
        f"{name} has shape {array.shape}, expected one number: account for each setting by itself.",
    )
    return float(array)


def _check_events(events: Sequence[Event]) -> None:
    require(
        isinstance(events, Sequence) and all(isinstance(e, Event) for e in events),
        f"events must be a sequence of Event, such as [event(mechanism, rounds)], got {shown(events)}.",
    )


def _only_zero_out(events: Sequence[Event], accountant: str) -> None:
    _check_events(events)
    require(
        all(e.relation is Relation.ZERO_OUT for e in events),
        f"the accountant {accountant} is for Poisson sampling; use renyi for a fixed size.",
    )


def loss(accountant: Accountant | None, events: Sequence[Event], delta: float) -> float:
    """ε of several events.

    Args:
        accountant: The accountant. None: `tightest`.
        events: All releases.
        delta: δ, in (0, 1).

    Returns:
        ε.

    Raises:
        ValueError: The accountant does not return a number.

    Example:
        >>> import jaxbo
        >>> jaxbo.accounting.loss(jaxbo.accounting.moments, [], 1e-5)
        0.0
    """
    check_accountant(accountant)
    found = (accountant or tightest(events))(events, delta)
    one = isinstance(found, Real) or getattr(found, "shape", None) == ()
    require(one, f"accountant must return epsilon, one number, got {shown(found)}.")
    return found


def check_accountant(accountant: Accountant | None) -> None:
    """Checks that an accountant is a function of events and delta.

    Args:
        accountant: The accountant; None stands for `tightest`.

    Raises:
        ValueError: It is not.

    Example:
        >>> import jaxbo
        >>> jaxbo.accounting.check_accountant(jaxbo.accounting.moments)
    """
    require(
        accountant is None or (takes(accountant, 2) and not isinstance(accountant, type)),
        f"accountant must be one of accounting's {', '.join(BY_NAME)}, or another function of events and "
        f"delta, got {shown(accountant)}.",
    )


def check_delta(delta: float) -> None:
    """Checks that δ is a number in (0, 1).

    Args:
        delta: The number.

    Raises:
        ValueError: It is not.

    Example:
        >>> import jaxbo
        >>> jaxbo.accounting.check_delta(1e-5)
    """
    require(
        isinstance(delta, Real) and 0 < delta < 1,
        f"delta must lie in (0, 1), got {delta!r}: it is a probability.",
    )


def _check_epsilon(epsilon: float) -> None:
    require(
        isinstance(epsilon, Real) and 0 < epsilon < math.inf,
        f"epsilon must be positive and finite, got {epsilon!r}.",
    )
