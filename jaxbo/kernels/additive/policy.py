"""From a belief about a sum of factors to what is maximized, by messages and then point by point.

    UpperBound         Σ_I mean_I + √β std_I on grids, mean + √β std of f itself      (DEC-HBO, eq. 2)
    FactorSample       Σ_I f_I,  f ~ belief: the sum of its parts, on grids as anywhere
    MaxValueEntropy    Σ_I of what is learned of the largest value of f_I             (ADD-MES)

Each gives tables whose sum is easy to maximize, and the function that the answer is judged by.
"""

import abc
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

from jaxbo._check import whole
from jaxbo.kernels.additive import kernel as additive
from jaxbo.kernels.additive import tables as factor_tables
from jaxbo.kernels.additive.decomposed import Belief, Decomposed, Shared
from jaxbo.kernels.choosing import acquisition
from jaxbo.kernels.choosing.policy import Beta, as_beta, beta_at, check_beta
from jaxbo.kernels.factors.graph import Tables
from jaxbo.types import Function, Key, Point, Points, Scalar


class Objective(NamedTuple):
    """`tables` are proposals: the maximizer of each is where a search for that of `function` begins.

    For every grid of the belief there may be several kinds of them: of each group of factors
    [kinds, boxes, chains, factors, grid ...].
    """

    tables: Tables
    function: Function


class AbstractFactorPolicy(eqx.Module):
    """How the next query follows from what is believed of every factor."""

    @abc.abstractmethod
    def random(self) -> bool:
        """Whether two queries from one belief differ by themselves."""

    @abc.abstractmethod
    def __call__(
        self, key: Key, surrogate: Decomposed, shared: Shared, belief: Belief, candidates: Points
    ) -> Objective:
        """What to maximize; `candidates` are points of the domain."""


class UpperBound(AbstractFactorPolicy):
    """mean + √β std; `beta` is the squared number of standard deviations, or a schedule of it
    (`schedules.Confidence` is the theorem's) over the evaluations that the model has seen.

    The sum of the factors' deviations, which the paper maximizes, is larger than the deviation of
    their sum, which explores too much. With `joint`, messages propose the maximizers of that sum and of
    Σ_I (mean_I + √β variance_I / 2s), s the deviation of f at the best of the candidates, which is
    tighter where the variances add up to about s²; and the upper bound of f itself decides. Without,
    what is maximized is the paper's sum.
    """

    beta: Beta = eqx.field(converter=as_beta, default=2.0)
    joint: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        check_beta(self.beta)

    def random(self) -> bool:
        return False

    def __call__(
        self, key: Key, surrogate: Decomposed, shared: Shared, belief: Belief, candidates: Points
    ) -> Objective:
        del key
        mean, variance = surrogate.factors(belief)
        root = jnp.sqrt(beta_at(self.beta, surrogate.count(belief) + 1).astype(mean[0].dtype))

        def upper(mean: Float[Array, "*shape"], variance: Float[Array, "*shape"]) -> Array:
            return mean + root * _std(variance)

        def function(x: Point) -> Scalar:
            if self.joint:
                return jnp.mean(upper(*surrogate.standardized(shared, belief, x)))
            return jnp.mean(jnp.sum(upper(*surrogate.parts(belief, x)), axis=1))

        if not self.joint:
            return Objective(jax.tree.map(lambda m, v: upper(m, v)[None], mean, variance), function)
        best = candidates[jnp.argmax(jax.vmap(function)(candidates))]
        _, joint = surrogate.standardized(shared, belief, best)

        def two_kinds(mean: Array, variance: Array) -> Array:
            # √v ≤ v / 2s + s / 2 for any s > 0, with equality at s = √v.
            squares = jax.vmap(lambda v, s: v / (2 * s), (1, 0), 1)(variance, _std(joint))
            return jnp.stack([upper(mean, variance), mean + root * squares])

        return Objective(jax.tree.map(two_kinds, mean, variance), function)


class FactorSample(AbstractFactorPolicy):
    """Thompson sampling: the maximizer of a function drawn from the belief, which is a sum itself.

    Drawn by Fourier features of every factor, `size` of them, and corrected through the data.
    """

    size: int = eqx.field(static=True, default=100)

    def __check_init__(self):
        whole("size", self.size, least=1)

    def random(self) -> bool:
        return True

    def __call__(
        self, key: Key, surrogate: Decomposed, shared: Shared, belief: Belief, candidates: Points
    ) -> Objective:
        chain_key, key = jr.split(key)
        drawn = surrogate.draw(key, belief, self.size)
        # Under several structures, of one of them; tables are averaged over all.
        count = surrogate.structure.chains
        chain = jr.randint(chain_key, (), 0, count)
        chosen = jax.vmap(
            lambda i, t: t * jnp.where(i == chain, count, 0).astype(t.dtype), (0, 1), 1
        )
        tables = jax.tree.map(
            lambda t: chosen(jnp.arange(count), t)[None], _tabulated(drawn, belief.points[0])
        )
        function = jax.tree.map(lambda leaf: leaf[chain], drawn)
        return Objective(tables, function)


class MaxValueEntropy(AbstractFactorPolicy):
    """What an evaluation of each factor would tell of its largest value (Wang and Jegelka, 2017).

        Σ_I mean over m of  γ φ(γ) / 2Φ(γ) - log Φ(γ),    γ = (m - mean_I) / std_I

    over `samples` of the largest value m: of a Gumbel distribution fitted to the quartiles of the
    largest of all points of the grid, as if they were independent (ADD-MES-G), or with `paths` of
    functions drawn from the belief (ADD-MES-R), `size` features each.
    """

    samples: int = eqx.field(static=True, default=10)
    paths: bool = eqx.field(static=True, default=False)
    size: int = eqx.field(static=True, default=100)

    def __check_init__(self):
        whole("samples", self.samples, least=1)
        whole("size", self.size, least=1)

    def random(self) -> bool:
        return True

    def __call__(
        self, key: Key, surrogate: Decomposed, shared: Shared, belief: Belief, candidates: Points
    ) -> Objective:
        mean, variance = surrogate.factors(belief)
        ends = np.cumsum([table.shape[2] for table in mean])[:-1]

        def everywhere(tables: tuple[Shaped[Array, "boxes chains _ ..."], ...]) -> list[Array]:
            """Every factor [chains, factors, points] at all points of the grids that cover the domain."""
            covering = [jnp.moveaxis(table[: surrogate.cover], 0, 2) for table in tables]
            return [table.reshape(*table.shape[:2], -1) for table in covering]

        means = everywhere(mean)
        if self.paths:

            def largest(key: Key) -> Float[Array, "chains factors"]:
                drawn = _tabulated(surrogate.draw(key, belief, self.size), belief.points[0])
                return jnp.concatenate([jnp.max(t, axis=2) for t in everywhere(drawn)], axis=1)

            most = jnp.moveaxis(jax.lax.map(largest, jr.split(key, self.samples)), 0, 2)
        else:
            draw = jax.vmap(jax.vmap(lambda m, v, d, k: gumbel(k, m, v, self.samples, d)))
            keys = jr.split(key, (surrogate.structure.chains, sum(len(t[0]) for t in means)))
            grids = means, everywhere(variance), everywhere(surrogate.distinct(belief))
            groups = zip(*grids, jnp.split(keys, ends, axis=1), strict=True)
            most = jnp.concatenate([draw(*group) for group in groups], axis=1)
        # A value below what is known of the factor already would be a mistake of the approximation.
        known = jnp.concatenate([jnp.max(t, axis=2) for t in means], axis=1)
        most = jnp.maximum(most, known[:, :, None] + 1e-3)

        def gain(mean: Scalar, variance: Scalar, most: Float[Array, " samples"]) -> Scalar:
            gamma = (most - mean) / _std(variance)
            log_cdf = jax.scipy.stats.norm.logcdf(gamma)
            log_pdf = jax.scipy.stats.norm.logpdf(gamma)
            return jnp.mean(gamma * jnp.exp(log_pdf - log_cdf) / 2 - log_cdf)

        def gains(mean: Array, variance: Array, most: Array) -> Array:
            flat = (*mean.shape[:3], -1)
            each = jax.vmap(jax.vmap(jax.vmap(jax.vmap(gain, (0, 0, None)))), (0, 0, None))
            return each(mean.reshape(flat), variance.reshape(flat), most).reshape(mean.shape)[None]

        groups = zip(mean, variance, jnp.split(most, ends, axis=1), strict=True)
        tables = tuple(gains(*group) for group in groups)

        def function(x: Point) -> Scalar:
            return jnp.mean(
                jnp.sum(jax.vmap(jax.vmap(gain))(*surrogate.parts(belief, x), most), axis=1)
            )

        return Objective(tables, function)


def _tabulated(drawn: additive.Sample, points: Float[Array, "boxes dim grid"]) -> Tables:
    """A function of every chain on every grid, [boxes, chains, factors, grid ...]."""
    return jax.vmap(lambda p: jax.vmap(lambda f: factor_tables.of_sample(f, p))(drawn))(points)


def gumbel(
    key: Key,
    mean: Float[Array, " points"],
    variance: Float[Array, " points"],
    samples: int,
    distinct: Bool[Array, " points"] | bool = True,
) -> Float[Array, " samples"]:
    """Draws of about the largest of independent normals: a Gumbel with their quartiles of it.

    Those that are not `distinct` repeat others.
    """
    std = _std(variance)
    low = jnp.max(mean) - 5 * jnp.max(std)
    high = jnp.max(mean) + 10 * jnp.max(std)

    def quantile(share: float) -> Scalar:
        def halve(_: Array, ends: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
            middle = (ends[0] + ends[1]) / 2
            each = jax.scipy.stats.norm.logcdf((middle - mean) / std)
            below = jnp.sum(jnp.where(distinct, each, 0)) < math.log(share)
            return jnp.where(below, middle, ends[0]), jnp.where(below, ends[1], middle)

        below, above = jax.lax.fori_loop(0, 30, halve, (low, high))
        return (below + above) / 2

    lower, median, upper = (quantile(share) for share in (0.25, 0.5, 0.75))
    scale = (upper - lower) / (math.log(-math.log(0.25)) - math.log(-math.log(0.75)))
    place = median + scale * math.log(-math.log(0.5))
    return place + scale * jr.gumbel(key, (samples,), mean.dtype)


def _std(variance: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    return jnp.sqrt(jnp.maximum(variance, acquisition.variance_floor(variance.dtype)))
