"""A lower bound on ε from runs: how well can the best attacker tell whether an owner took part?

    two worlds   the owner sends a message longer than allowed, or never takes part
                 (`Relation.REPLACE`: it sends that message, or its opposite)
    statistic    the log likelihood ratio of all releases, which no other test beats
    bound        ε ≥ log((P[A | one] - δ) / P[A | other])   for any set A of outcomes

The set is a threshold. It is chosen on one half of the runs. Both probabilities are bounded by
Clopper-Pearson on the other half. Each world is tried in the place of the other. All bounds hold
together at the stated confidence. `jaxbo.audit` makes the runs.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxbo.privacy.mechanism import Mechanism, Relation
from jaxbo.types import Scalar

#: Thresholds that are tried: quantiles of the statistic in the likelier world.
_THRESHOLDS = np.linspace(0, 0.999, 300)
#: Nearest to 1 that the probability of not being drawn has a logarithm in float32.
_LEAST = 1e-7


@dataclasses.dataclass(frozen=True)
class Audit:
    """The part of a claimed privacy loss that an attack proves. `print` shows it in a sentence.

    Args:
        lower: The lower bound on ε.
        claimed: The claimed ε.
        delta: The δ of both.
        confidence: The probability with which the bound holds.
        runs: Number of runs with the owner, and of as many without.
        rounds: Rounds of a run.
        most: The largest bound that so many runs can give.

    Example:
        >>> from jaxbo import Audit
        >>> found = Audit(0.8, 2.0, 1e-5, 0.95, 400, 3, 3.7)
        >>> found.broken
        False
        >>> print(found.sentence[-37:])
        is claimed: the claim is not refuted.
    """

    lower: float
    claimed: float
    delta: float
    confidence: float
    runs: int
    rounds: int
    most: float

    @property
    def broken(self) -> bool:
        """Whether the bound is above the claim."""
        return self.lower > self.claimed

    @property
    def sentence(self) -> str:
        """The result in words."""
        runs = f"{self.runs} runs of {self.rounds} rounds with one owner and {self.runs} without"
        found = f"In {runs}, an attack proves an epsilon of {self.lower:.3g} at least"
        sure = f"with {self.confidence:.4g} confidence, at delta {self.delta:.2g}"
        if self.broken:
            return f"{found}, {sure}: more than the claimed {self.claimed:.3g}, so the claim is broken."
        said = f"{found}, {sure}, and {self.claimed:.3g} is claimed: the claim is not refuted."
        if self.most < self.claimed:
            said += f" So few runs could not refute it: they prove {self.most:.3g} at most."
        return said

    def __str__(self) -> str:
        return self.sentence


def log_ratio(
    mechanism: Mechanism,
    released: Float[Array, "regions size"],
    added: Float[Array, "regions size"],
    deviation: Scalar,
) -> Scalar:
    """The log of a release's density in the first world over its density in the second.

    `released` is the release without the part of the other owners. `added` is the owner's part where it
    is drawn, and `deviation` is the deviation of the noise.
    """
    q = mechanism.sampling.q

    def against_noise(added: Float[Array, "regions size"]) -> Scalar:
        exponent = (2 * jnp.sum(released * added) - jnp.sum(added**2)) / (2 * deviation**2)
        drawn = jnp.log(q) + exponent
        missed = jnp.log1p(-jnp.minimum(q, 1 - _LEAST))
        return jnp.where(q < 1, jnp.logaddexp(missed, drawn), drawn)

    if mechanism.sampling.relation is Relation.REPLACE:
        return against_noise(added) - against_noise(-added)
    return against_noise(added)


def bound(
    one: Float[np.ndarray, " runs"],
    other: Float[np.ndarray, " runs"],
    delta: float,
    confidence: float = 0.95,
) -> float:
    """The largest ε such that two samples of the statistic rule out all smaller ones; 0 at least."""
    # Two probabilities, each in two directions of the test: a quarter of the risk each.
    risk = (1 - confidence) / 4
    directions = ((one, other), (-other, -one))
    return max(0.0, *(_one_sided(*samples, delta, risk) for samples in directions))


def largest(runs: int, delta: float, confidence: float) -> float:
    """The bound from so many runs of each world if the statistic tells them apart without fail."""
    held = runs - runs // 2
    return _epsilon(np.ones(held), np.zeros(held), 0.5, delta, (1 - confidence) / 4)


def _one_sided(likely: np.ndarray, unlikely: np.ndarray, delta: float, risk: float) -> float:
    """From the event that the statistic is a threshold or above."""
    half = len(likely) // 2
    thresholds = np.quantile(likely[:half], _THRESHOLDS)
    guesses = [_epsilon(likely[:half], unlikely[:half], t, delta, risk) for t in thresholds]
    best = thresholds[int(np.argmax(guesses))]
    return _epsilon(likely[half:], unlikely[half:], best, delta, risk)


def _epsilon(
    likely: np.ndarray, unlikely: np.ndarray, threshold: float, delta: float, risk: float
) -> float:
    from scipy import special  # late, as importing it takes a third as long as this package

    above = int(np.sum(likely >= threshold)), int(np.sum(unlikely >= threshold))
    least = special.betaincinv(above[0], len(likely) - above[0] + 1, risk) if above[0] else 0.0
    below = len(unlikely) - above[1]
    most = special.betaincinv(above[1] + 1, below, 1 - risk) if below else 1.0
    return float(np.log((least - delta) / most)) if least > delta else -np.inf
