"""The share of a signal that a private mean keeps, known before a federation begins.

    signal     all N owners send the same message, as long as clipping lets it: |u| = S / √P in each
               of P regions
    mean       Σ_{n in sample} φ_in u / q + noise,     u in expectation
    noise      the deviation of each of its numbers: z Δ, Δ = φ_max S / q (`privacy.mechanism`)
    sampling   the deviation of Σ_{n in sample} φ_in / q about 1: √((1 - q) / q Σ_n φ_in²)
    ratio      |u| / √(noise² + sampling² |u|²) of the number u'mean / |u|, which is the best reading
    whole      |u| / √(D noise² + sampling² |u|²) of the D numbers of a region

Owners never agree as much as here. So a ratio is the most that can be hoped for. When all count alike,
φ = 1 / N, the noise is z S / (N q). While each owner counts in its own region alone, φ_max is P / N or a
little more, and the noise is P times as large (`exact`: √P times).
"""

import dataclasses
from typing import Any

import numpy as np

from jaxbo.privacy.mechanism import EMPHASIS, Mechanism, Poisson

#: A number that is below two deviations of its noise is not told from 0.
_SEEN = 2.0


@dataclasses.dataclass(frozen=True)
class PrivacyPlan:
    """The noise that a privacy loss takes, and the signal beside it. `print` shows both in words.

    `noise` is the deviation of each number of a released mean when all owners count alike, and `first`
    that of the first round, in which each owner counts in its own region. They and `signal` are
    multiples of the clipping bound S.
    """

    owners: int
    rounds: int
    epsilon: float
    delta: float
    q: float
    z: float
    size: int
    regions: int
    exact: bool
    accountant: str
    signal: float
    noise: float
    first: float
    sampling: float

    @property
    def ratio(self) -> float:
        """Signal over noise of the best single reading, in the round with the most noise."""
        return self.signal / float(np.hypot(max(self.noise, self.first), self._drawn))

    @property
    def whole(self) -> float:
        """Signal over noise of the whole vector of a region, in the round with the most noise."""
        largest = max(self.noise, self.first) * self.size**0.5
        return self.signal / float(np.hypot(largest, self._drawn))

    @property
    def only_noise(self) -> bool:
        """Whether even the best reading is below two deviations of its noise."""
        return self.ratio < _SEEN

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        who = f"{self.owners} owner{'s' * (self.owners > 1)} at epsilon {self.epsilon:.3g}"
        if self.only_noise:
            return f"{who}: only noise is left."
        if self.whole < 1:
            return (
                f"{who}: the noise outweighs the signal, except for what nearly all owners share."
            )
        return f"{who}: the signal outweighs the noise."

    def mechanism(self, S: float) -> Mechanism:
        """The mechanism of this plan, with messages clipped to the norm `S`."""
        return Mechanism(self.z, S, Poisson(self.q), self.exact)

    @property
    def _drawn(self) -> float:
        return self.sampling * self.signal

    def __str__(self) -> str:
        numbers = f"{self.size} numbers" + f" of each of {self.regions} regions" * (
            self.regions > 1
        )
        lines = [
            self.verdict,
            f"  loss      epsilon {self.epsilon:.4g} at delta {self.delta:.2g} over {self.rounds} "
            f"release{'s' * (self.rounds > 1)} ({self.accountant})",
            f"  settings  z = {self.z:.4g}, q = {self.q:.4g}",
            f"  signal    {self.signal:.3g} S, the norm of a message that all owners send",
            f"  noise     {self.noise:.3g} S in each of {numbers}, {self.noise * self.size**0.5:.3g} S "
            "in norm",
        ]
        if self.first > self.noise * 1.001:
            lines.append(
                f"            {self.first:.3g} S while each owner counts in its own region"
            )
        if self.sampling:
            lines.append(f"  sampling  {self._drawn:.3g} S, from drawing some of the owners")
        lines.append(
            f"  ratio     {self.ratio:.3g} for the best reading, {self.whole:.3g} for the whole vector"
        )
        if self.only_noise:
            lines.append(
                "  remedies  more owners, fewer releases, a larger epsilon or fewer regions"
            )
        return "\n".join(lines)


def planned(**known: Any) -> PrivacyPlan:
    """The plan with these fields, and the others computed from them."""
    regions, q, exact = known["regions"], known["q"], known["exact"]
    begun, alike = (_Weights(known["owners"], regions, a) for a in (EMPHASIS, 0.0))
    noise = known["z"] / q
    return PrivacyPlan(
        **known,
        signal=regions**-0.5,
        noise=noise * alike.sensitivity(exact),
        first=noise * begun.sensitivity(exact),
        sampling=((1 - q) / q * begun.squares()) ** 0.5,
    )


class _Weights:
    """φ of `mechanism.region_weights`, in float64. Regions have two sizes at most, one owner apart.

    `own` is how an owner counts in its own region, of either size, and `other` in another region.
    """

    def __init__(self, owners: int, regions: int, emphasis: float):
        size, more = divmod(owners, regions)
        sizes, count = np.asarray([size + 1.0, size]), np.asarray([more, regions - more], float)
        elsewhere, less = owners - sizes, np.exp(-emphasis)
        there = count > 0
        self.sizes, self.elsewhere, self.count = sizes[there], elsewhere[there], count[there]
        self.own = 1 / (self.sizes + self.elsewhere * less)
        self.other = less * self.own

    def sensitivity(self, exact: bool) -> float:
        """The sensitivity of the mechanism, over S / q."""
        own, other = (weights[self.sizes > 0] for weights in (self.own, self.other))
        if not exact:
            return float(max(np.max(own), np.max(self.other)))
        norms = own**2 - other**2 + np.sum(self.count * self.other**2)
        return float(np.sqrt(np.max(norms) / np.sum(self.count)))

    def squares(self) -> float:
        """The largest Σ_n φ_in²."""
        return float(np.max(self.sizes * self.own**2 + self.elsewhere * self.other**2))
