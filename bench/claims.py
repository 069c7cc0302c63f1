"""Claims that can fail: a figure, its 95 % interval, and the margin that was stated beforehand.

    holds       the whole interval is within the margin
    refuted     the whole interval is outside of it
    undecided   neither; `needed` runs would decide,  n (half the width / distance to the margin)²

The interval depends on what the runs of two methods share:

    mean        x̄ ± t s / √n
    paired      the same of x - y,  where run i of both has the same objective and key
    apart       x̄ - ȳ of independent runs, with Welch's degrees of freedom
    ratio       those r for which x̄ - r ȳ may be 0 (Fieller), paired or apart

t is the 97.5 % quantile of Student's distribution, which few runs need: of two runs it is 12.7. A single
run of something random says nothing. A figure that is not random has no interval: it is `met` or not.
"""

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

#: A claim of "no worse" allows this share of the rival's mean, unless it says otherwise.
MARGIN = 0.05
BY = f"by more than {100 * MARGIN:g} %"
LEVEL = 0.95
#: A larger number of runs is called hopeless: nobody would make them.
HOPELESS = 1_000_000


class Verdict(StrEnum):
    """The outcome of a claim."""

    HOLDS = "holds"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


SYMBOLS = {Verdict.HOLDS: "✓", Verdict.REFUTED: "✗", Verdict.UNDECIDED: "?"}
LEGEND = "✓ holds   ✗ refuted   ? undecided"

EVERYWHERE = (-math.inf, math.inf)
#: How an interval was made.
PAIRED, APART, MEAN, ONE_RUN = "paired", "apart", "mean", "one run"
SHARE, MEDIAN, FIXED = "share", "median", "not random"


class Check(NamedTuple):
    """A claim's outcome and the numbers that decided it.

    The figure is to lie within `margin`. `how` says how its interval was made. `needed` is infinite where
    no number of runs would decide, and None where that is not known.
    """

    outcome: Verdict
    figure: float
    margin: tuple[float, float] = EVERYWHERE
    interval: tuple[float, float] | None = None
    runs: int | None = None
    needed: float | None = None
    how: str = FIXED

    @property
    def holds(self) -> bool:
        """Whether the claim holds. Otherwise it is refuted or undecided."""
        return self.outcome is Verdict.HOLDS

    @property
    def refuted(self) -> bool:
        """Whether the claim is refuted."""
        return self.outcome is Verdict.REFUTED

    @property
    def undecided(self) -> bool:
        """Whether the claim is undecided."""
        return self.outcome is Verdict.UNDECIDED

    def content(self) -> dict[str, Any]:
        """The check as it is written to a file."""
        needed: int | str | None = None
        if self.needed is not None and not math.isnan(self.needed):
            needed = "hopeless" if self.needed > HOPELESS else math.ceil(self.needed)
        return self._asdict() | {"outcome": str(self.outcome), "needed": needed}


# ---------------------------------------------------------------- what is not random


def met(figure: float, *, least: float = -math.inf, most: float = math.inf) -> Check:
    """Whether a figure that is not random, such as the size of a message or a time, lies between both."""
    outcome = Verdict.HOLDS if least <= figure <= most else Verdict.REFUTED
    return Check(outcome, float(figure), (least, most))


# ---------------------------------------------------------------- one mean


def on_average(values: np.ndarray, *, least: float = -math.inf, most: float = math.inf) -> Check:
    """Whether the mean over runs lies between both."""
    one = pair(values, np.zeros(len(values)), paired=True)._replace(how=MEAN)
    return _by_difference(one, least, most)


def share(values: np.ndarray, *, least: float = -math.inf, most: float = math.inf) -> Check:
    """Whether an event is as frequent as that, by the exact interval.

    `values` has a truth value for each run.
    """
    found = np.asarray(values, bool)
    ends = stats.binomtest(int(found.sum()), len(found)).proportion_ci(LEVEL)
    return decided(float(found.mean()), (ends.low, ends.high), least, most, len(found), SHARE)


def median(values: np.ndarray, *, least: float = -math.inf, most: float = math.inf) -> Check:
    """Whether the median over runs lies between both: the number of runs below it is binomial."""
    ordered, n = np.sort(np.asarray(values, float)), len(values)
    outside = int(stats.binom.ppf((1 - LEVEL) / 2, n, 0.5)) - 1
    # With fewer than six runs, all may lie on one side of the median.
    ends = (ordered[outside], ordered[n - 1 - outside]) if outside >= 0 else None
    return decided(float(np.median(ordered)), ends, least, most, n, MEDIAN)


# ---------------------------------------------------------------- two means


def difference(
    ours: np.ndarray,
    rival: np.ndarray,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    paired: bool = True,
) -> Check:
    """Whether our mean less the rival's lies between both."""
    return _by_difference(pair(ours, rival, paired), least, most)


def ratio(
    ours: np.ndarray,
    rival: np.ndarray,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    paired: bool = True,
) -> Check:
    """Whether our mean over the rival's lies between both. The rival's is positive, or both are 0."""
    return _by_ratio(pair(ours, rival, paired), least, most)


def below(ours: np.ndarray, rival: np.ndarray, *, paired: bool = True) -> Check:
    """Whether our mean is smaller; the figure is ours less the rival's."""
    return difference(ours, rival, most=0.0, paired=paired)


def at_most(ours: np.ndarray, rival: np.ndarray, times: float, *, paired: bool = True) -> Check:
    """Whether our mean is at most so many times the rival's."""
    return ratio(ours, rival, most=times, paired=paired)


def within(
    ours: np.ndarray, rival: np.ndarray, margin: float = MARGIN, *, paired: bool = True
) -> Check:
    """Whether our mean is no more than that share above the rival's; the figure is the ratio.

    If the rival's mean may be 0, `difference` with a margin in the unit of both says more.
    """
    return ratio(ours, rival, most=1 + margin, paired=paired)


# ---------------------------------------------------------------- several


def worst(checks: Iterable[Check]) -> Check:
    """The check that decides whether all hold: refuted comes first, then undecided, then holding.

    Among checks of the same outcome, it is the check whose interval is nearest to its margin.
    """
    order = {Verdict.REFUTED: 0, Verdict.UNDECIDED: 1, Verdict.HOLDS: 2}

    def rank(check: Check) -> tuple[int, float]:
        return order[check.outcome], _spare(check)

    return min(checks, key=rank)


def _spare(check: Check) -> float:
    """How far the interval lies within the margin."""
    low, high = check.interval or (check.figure, check.figure)
    least, most = check.margin
    return min(low - least, most - high)


# ---------------------------------------------------------------- from moments to an outcome


class Pair(NamedTuple):
    """The means of two, the variances of these means, their covariance, and the runs of each."""

    means: tuple[float, float]
    variances: tuple[float, float]
    covariance: float
    runs: tuple[int, int]
    how: str

    def contrast(self, times: float) -> tuple[float, float, float]:
        """Ours less so many times the rival's, half the width of its interval, and Student's t."""
        middle = self.means[0] - times * self.means[1]
        if min(self.runs) < 2:
            return middle, math.inf, math.inf
        of_ours, of_rival = self.variances[0], times**2 * self.variances[1]
        variance = max(of_ours + of_rival - 2 * times * self.covariance, 0.0)
        degrees = self.runs[0] - 1.0
        if self.how == APART and variance > 0:
            each = of_ours**2 / (self.runs[0] - 1), of_rival**2 / (self.runs[1] - 1)
            degrees = variance**2 / sum(each)
        t = float(stats.t.ppf((1 + LEVEL) / 2, degrees))
        return middle, t * math.sqrt(variance), t


def pair(ours: np.ndarray, rival: np.ndarray, paired: bool) -> Pair:
    """The means of two methods and their errors, from the runs."""
    x, y = (np.asarray(values, float) for values in (ours, rival))
    if x.ndim != 1 or y.ndim != 1 or not x.size or not y.size:
        raise ValueError(f"a claim is about one number a run, got shapes {x.shape} and {y.shape}.")
    if paired and len(x) != len(y):
        raise ValueError(f"{len(x)} and {len(y)} runs are no pairs: say paired=False.")
    a = b = c = 0.0
    if min(len(x), len(y)) > 1:
        a, b = x.var(ddof=1) / len(x), y.var(ddof=1) / len(y)
        c = np.cov(x, y)[0, 1] / len(x) if paired else 0.0
    means, variances = (float(x.mean()), float(y.mean())), (float(a), float(b))
    return Pair(means, variances, float(c), (len(x), len(y)), PAIRED if paired else APART)


def _by_difference(two: Pair, least: float, most: float) -> Check:
    middle, half, _ = two.contrast(1.0)
    ends = None if math.isinf(half) else (middle - half, middle + half)
    return decided(middle, ends, least, most, min(two.runs), two.how)


def _by_ratio(two: Pair, least: float, most: float) -> Check:
    (ours, rival), n = two.means, min(two.runs)
    if n < 2 or rival < 0:  # a smaller ratio is no smaller mean then
        return decided(ours / rival if rival else math.inf, None, least, most, n, two.how)
    if ours == rival == 0 and not any(two.variances):
        return decided(1.0, (1.0, 1.0), least, most, n, two.how)
    figure = ours / rival if rival else math.inf
    end = _nearest(figure, least, most)
    middle, half, t = two.contrast(end)
    needed = n * (half / middle) ** 2 if middle else math.inf
    return decided(figure, _fieller(two, figure, t), least, most, n, two.how, needed)


def _fieller(two: Pair, figure: float, t: float) -> tuple[float, float]:
    """The interval of ratios r for which ours - r rival lies within t errors of 0."""
    a = two.means[1] ** 2 - t**2 * two.variances[1]
    b = two.means[0] * two.means[1] - t**2 * two.covariance
    c = two.means[0] ** 2 - t**2 * two.variances[0]
    if a == 0:  # the rival is 0 without an error
        return (math.inf, math.inf) if c > 0 else EVERYWHERE
    rest = b**2 - a * c
    if a < 0 and rest < 0:  # both may be 0
        return EVERYWHERE
    root = math.sqrt(max(rest, 0.0))  # of runs that are in proportion, 0 but for rounding
    low, high = sorted(((b - root) / a, (b + root) / a))
    if a > 0:
        return low, high
    return (high, math.inf) if figure >= high else (-math.inf, low)  # the rival may be 0


def _nearest(figure: float, least: float, most: float) -> float:
    """The end of the margin that the figure is closest to."""
    ends = [end for end in (least, most) if math.isfinite(end)]
    return min(ends, key=lambda end: abs(figure - end)) if math.isfinite(figure) else ends[-1]


def decided(
    figure: float,
    ends: tuple[float, float] | None,
    least: float,
    most: float,
    runs: int,
    how: str,
    needed: float | None = None,
) -> Check:
    """The outcome of a figure with that interval; without one nothing is decided."""
    margin = least, most
    if ends is None:
        why = ONE_RUN if runs < 2 else how
        return Check(Verdict.UNDECIDED, float(figure), margin, None, runs, None, why)
    low, high = float(ends[0]), float(ends[1])
    check = Check(Verdict.UNDECIDED, float(figure), margin, (low, high), runs, None, how)
    if least < low and high < most:
        return check._replace(outcome=Verdict.HOLDS)
    if high < least or low > most:
        return check._replace(outcome=Verdict.REFUTED)
    if needed is None and math.isfinite(high - low):
        end = _nearest(figure, least, most)
        far, half = abs(figure - end), high - figure if end > figure else figure - low
        needed = runs * (half / far) ** 2 if far else math.inf
    return check._replace(needed=needed)
