"""The comparison of two methods, from the regrets of their runs.

    log-ratio of a problem    mean of log10 regret, ours less the peer's
    of a group                the mean over its problems: the logarithm of a geometric mean of ratios
    a win, a loss             the log-ratio is two standard errors below 0, or above

A regret counts at least `FLOOR` times the interquartile range of the problem's values: below that a
problem is solved.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.stats import binom, t

from bench.claims import Check, decided
from bench.common.text import number

FLOOR = 1e-6
#: Standard errors of a difference that decide a win or a loss.
ERRORS = 2.0
COVERAGE = 0.95
#: How the interval of a ratio was made, and what is counted as its runs.
PROBLEMS = "over problems"


def log_regrets(regrets: Float[np.ndarray, " runs"], scale: float) -> Float[np.ndarray, " runs"]:
    """Logarithms to base 10, with the floor."""
    return np.log10(np.maximum(regrets, FLOOR * scale))


class Median(NamedTuple):
    """The median of some runs and its 95 % interval. The interval of few runs is their range."""

    low: float
    median: float
    high: float


def median(values: Float[np.ndarray, " runs"]) -> Median:
    """By order statistics: the number of runs below the true median is binomial."""
    ordered, outside = np.sort(values), (1 - COVERAGE) / 2
    cut = max(int(binom.ppf(outside, len(ordered), 0.5)) - 1, 0)
    return Median(
        float(ordered[cut]), float(np.median(ordered)), float(ordered[len(ordered) - 1 - cut])
    )


class LogRatio(NamedTuple):
    """Log-ratios of problems: mean, standard error over the problems, and how many were decided."""

    mean: float
    error: float
    wins: int
    ties: int
    losses: int

    @property
    def figure(self) -> float:
        """The geometric mean of the ratios; below 1 where ours is better."""
        return 10**self.mean

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95 % interval, Student's over problems."""
        half = self.error * float(t.ppf((1 + COVERAGE) / 2, self.problems - 1))
        return 10 ** (self.mean - half), 10 ** (self.mean + half)

    @property
    def problems(self) -> int:
        """How many they are."""
        return self.wins + self.ties + self.losses

    @property
    def cells(self) -> tuple[str, ...]:
        """The figure, its interval, wins, ties and losses, as they are printed."""
        ends = " to ".join(map(number, self.interval)) if np.isfinite(self.error) else "-"
        return number(self.figure), ends, *map(str, (self.wins, self.ties, self.losses))

    def check(self, most: float = 1.0) -> Check:
        """Whether the ratio is at most that. `runs` are problems; one says nothing of others."""
        ends = self.interval if self.problems > 1 else None
        return decided(self.figure, ends, -math.inf, most, self.problems, PROBLEMS)


def ratio(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> LogRatio:
    """The comparison over several problems, each with log regrets of ours and of the peer."""
    means = np.array([ours.mean() - theirs.mean() for ours, theirs in pairs])
    return over(means, np.array([np.hypot(_error(o), _error(t)) for o, t in pairs]))


def over(means: np.ndarray, errors: np.ndarray | float = math.inf) -> LogRatio:
    """The same from log-ratios of problems, whose standard errors tell wins and losses from ties."""
    wins, losses = means < -ERRORS * errors, means > ERRORS * errors
    return LogRatio(
        float(means.mean()),
        _error(means) if len(means) > 1 else np.nan,
        int(wins.sum()),
        int((~wins & ~losses).sum()),
        int(losses.sum()),
    )


def _error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))
