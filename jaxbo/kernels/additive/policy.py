"""From a belief about a sum of factors to the function that is maximized, by messages and then
point by point.

    UpperBound         Σ_I mean_I + √β std_I on grids, mean + √β std of f itself      (DEC-HBO, eq. 2)
    FactorSample       Σ_I f_I,  f ~ belief: the sum of its parts, on grids as anywhere
    MaxValueEntropy    Σ_I of what is learned of the largest value of f_I             (ADD-MES)

Each gives tables whose sum is easy to maximize, and the function that the answer is judged by.
"""

import abc
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree, Shaped

from jaxbo._beta import Beta, as_beta, beta_at, check_beta
from jaxbo._check import whole
from jaxbo._extensible import Extensible
from jaxbo.kernels.additive import kernel as additive
from jaxbo.kernels.additive import tables as factor_tables
from jaxbo.kernels.additive.decomposed import (
    AdditiveBelief,
    AdditiveShared,
    Decomposed,
    FactorGrid,
)
from jaxbo.kernels.choosing import acquisition
from jaxbo.kernels.factors.graph import Tables
from jaxbo.types import Count, Function, Key, Point, Points, Scalar


class Objective(NamedTuple):
    """`function` is maximized, starting at the maxima of sums of tables.

    `tables` makes the tables of a chain on a grid, given the chain's own part of `chains`. An axis
    of kinds comes before the axis of the factors, and the sum of each kind is maximized by itself.
    """

    function: Function
    chains: PyTree
    tables: Callable[[PyTree, FactorGrid], Tables]

    def on(self, grid: FactorGrid) -> Tables:
        """The tables of all chains, with axes [kinds, chains], each from its own beliefs on the grid."""
        return jax.vmap(self.tables, out_axes=1)(self.chains, grid)


class AbstractFactorPolicy(Extensible):
    """How the next query follows from the beliefs about every factor."""

    @abc.abstractmethod
    def random(self) -> bool:
        """Says whether two queries from the same belief differ by themselves."""

    @abc.abstractmethod
    def __call__(
        self,
        key: Key,
        surrogate: Decomposed,
        shared: AdditiveShared,
        belief: AdditiveBelief,
        candidates: Points,
    ) -> Objective:
        """Returns the objective to maximize; `candidates` are points of the domain."""


class UpperBound(AbstractFactorPolicy):
    """The upper confidence bound of a sum of factors: mean + √β std.

    The paper maximizes the sum of the factors' deviations. That is larger than the deviation of
    their sum, so it explores too much. With `joint`, messages propose the maximizers of that sum,
    and the maximizers of Σ_I (mean_I + √β variance_I / 2s). Here s is the deviation of f at the
    best of the candidates. The second sum is tighter if the variances add up to about s². The upper
    bound of f itself then decides.

    Args:
        beta: The squared number of standard deviations, at least 0. A function is a schedule of it
            over the evaluations that the model has seen; `schedules.Confidence` is the theorem's.
            Default: 2.
        joint: Whether the upper bound of f itself decides. If not, the paper's sum is maximized.
            Default: True.

    Raises:
        ValueError: `beta` is below 0.

    Example:
        >>> import jaxbo
        >>> model = jaxbo.Decomposed([[0, 1], [1, 2]], capacity=30, grid=16)
        >>> method = jaxbo.DECHBO(jaxbo.Cube(3), model, jaxbo.UpperBound(beta=1.0))
        >>> method.random
        False
    """

    beta: Beta = eqx.field(converter=as_beta, default=2.0)
    joint: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        check_beta(self.beta)

    def random(self) -> bool:
        return False

    def __call__(
        self,
        key: Key,
        surrogate: Decomposed,
        shared: AdditiveShared,
        belief: AdditiveBelief,
        candidates: Points,
    ) -> Objective:
        del key
        beta = beta_at(self.beta, surrogate.count(belief) + 1)
        root = jnp.sqrt(beta.astype(belief.tables.variance[0].dtype))

        def upper(
            mean: Float[Array, "*shape"], variance: Float[Array, "*shape"]
        ) -> Float[Array, "*shape"]:
            return mean + root * _std(variance)

        def function(x: Point) -> Scalar:
            if self.joint:
                return jnp.mean(upper(*surrogate.standardized(shared, belief, x)))
            return jnp.mean(jnp.sum(upper(*surrogate.parts(belief, x)), axis=1))

        def alone(_: None, grid: FactorGrid) -> Tables:
            return jax.tree.map(lambda m, v: upper(m, v)[None], grid.mean, grid.variance)

        if not self.joint:
            return Objective(function, None, alone)
        best = candidates[jnp.argmax(jax.vmap(function)(candidates))]
        _, joint = surrogate.standardized(shared, belief, best)

        def both(s: Scalar, grid: FactorGrid) -> Tables:
            # √v ≤ v / 2s + s / 2 for any s > 0, with equality at s = √v.
            return jax.tree.map(
                lambda m, v: jnp.stack([upper(m, v), m + root * (v / (2 * s))]),
                grid.mean,
                grid.variance,
            )

        return Objective(function, _std(joint), both)


class FactorSample(AbstractFactorPolicy):
    """Thompson sampling: the maximizer of a function drawn from the belief, which is a sum itself.

    The function is drawn by Fourier features of every factor, and corrected through the data.

    Args:
        size: Number of features a factor, at least 1. Default: 100.

    Raises:
        ValueError: `size` is below 1.

    Example:
        >>> import jaxbo
        >>> model = jaxbo.Decomposed([[0, 1], [1, 2]], capacity=30, grid=16)
        >>> method = jaxbo.DECHBO(jaxbo.Cube(3), model, jaxbo.FactorSample(size=50))
        >>> method.random
        True
    """

    size: int = eqx.field(static=True, default=100)

    def __check_init__(self):
        whole("size", self.size, least=1)

    def random(self) -> bool:
        return True

    def __call__(
        self,
        key: Key,
        surrogate: Decomposed,
        shared: AdditiveShared,
        belief: AdditiveBelief,
        candidates: Points,
    ) -> Objective:
        chain_key, key = jr.split(key)
        drawn = surrogate.draw(key, belief, self.size)
        # Under several structures, of one of them; tables are averaged over all.
        count = surrogate.structure.chains
        chain = jr.randint(chain_key, (), 0, count)
        shares = jnp.where(jnp.arange(count) == chain, count, 0)

        def tables(own: tuple[additive.Sample, Count], grid: FactorGrid) -> Tables:
            drawn, share = own
            found = factor_tables.of_sample(drawn, grid.points)
            return jax.tree.map(lambda t: (t * share.astype(t.dtype))[None], found)

        return Objective(jax.tree.map(lambda leaf: leaf[chain], drawn), (drawn, shares), tables)


class MaxValueEntropy(AbstractFactorPolicy):
    """The information of an evaluation about each factor's largest value (Wang and Jegelka, 2017).

        Σ_I mean over m of  γ φ(γ) / 2Φ(γ) - log Φ(γ),    γ = (m - mean_I) / std_I

    m is a sample of the largest value. With `paths` it is the largest value of a function drawn
    from the belief (ADD-MES-R). Without, it is drawn from a Gumbel distribution (ADD-MES-G). The
    distribution is fitted to the quartiles of the largest value on the grid, as if values were
    independent.

    Args:
        samples: Number of samples of the largest value, at least 1. Default: 10.
        paths: Whether samples come from functions that are drawn. Default: False.
        size: Number of features of each function that is drawn, at least 1. Default: 100.

    Raises:
        ValueError: A number is below 1.

    Example:
        >>> import jaxbo
        >>> model = jaxbo.Decomposed([[0, 1], [1, 2]], capacity=30, grid=16)
        >>> method = jaxbo.DECHBO(jaxbo.Cube(3), model, jaxbo.MaxValueEntropy(samples=5))
        >>> method.random
        True
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
        self,
        key: Key,
        surrogate: Decomposed,
        shared: AdditiveShared,
        belief: AdditiveBelief,
        candidates: Points,
    ) -> Objective:
        covering = jax.tree.map(lambda leaf: leaf[:, : surrogate.cover], surrogate.grids(belief))
        known = jax.vmap(_largest)(covering.mean)
        if self.paths:

            def largest(drawn: additive.Sample, points: Array) -> Float[Array, " factors"]:
                """The largest value of a chain, on the grids that cover the domain."""
                return _largest(jax.vmap(lambda p: factor_tables.of_sample(drawn, p))(points))

            def one(key: Key) -> Float[Array, "chains factors"]:
                return jax.vmap(largest)(surrogate.draw(key, belief, self.size), covering.points)

            most = jnp.moveaxis(jax.lax.map(one, jr.split(key, self.samples)), 0, 2)
        else:
            distinct = tuple(d[:, : surrogate.cover] for d in surrogate.distinct(belief))
            keys = jr.split(key, known.shape)
            most = jax.vmap(lambda *chain: _gumbels(self.samples, *chain))(keys, covering, distinct)
        # A value below what is known of the factor already would be a mistake of the approximation.
        most = jnp.maximum(most, known[:, :, None] + 1e-3)

        def gains(most: Float[Array, "factors samples"], grid: FactorGrid) -> Tables:
            groups = zip(grid.mean, grid.variance, _grouped(most, grid.mean), strict=True)
            return tuple(_gains(*group)[None] for group in groups)

        def function(x: Point) -> Scalar:
            return jnp.mean(
                jnp.sum(jax.vmap(jax.vmap(_gain))(*surrogate.parts(belief, x), most), axis=1)
            )

        return Objective(function, most, gains)


def _gain(mean: Scalar, variance: Scalar, most: Float[Array, " samples"]) -> Scalar:
    """The information of the value at a point about the largest value."""
    gamma = (most - mean) / _std(variance)
    log_cdf = jax.scipy.stats.norm.logcdf(gamma)
    log_pdf = jax.scipy.stats.norm.logpdf(gamma)
    return jnp.mean(gamma * jnp.exp(log_pdf - log_cdf) / 2 - log_cdf)


def _gains(
    mean: Float[Array, " factors *grid"],
    variance: Float[Array, " factors *grid"],
    most: Float[Array, "factors samples"],
) -> Float[Array, " factors *grid"]:
    """`_gain` at every point of the factors' grids."""
    flat = (len(mean), -1)
    each = jax.vmap(jax.vmap(_gain, (0, 0, None)))
    return each(mean.reshape(flat), variance.reshape(flat), most).reshape(mean.shape)


def _flat(table: Shaped[Array, "boxes factors *grid"]) -> Shaped[Array, "factors points"]:
    """Each factor at the points of all boxes."""
    return jnp.moveaxis(table, 0, 1).reshape(table.shape[1], -1)


def _largest(tables: tuple[Float[Array, "boxes _factors *_grid"], ...]) -> Float[Array, " factors"]:
    return jnp.concatenate([jnp.max(_flat(table), axis=1) for table in tables])


def _grouped(each: Shaped[Array, "factors ..."], tables: Sequence[Array]) -> list[Array]:
    """An array with an entry for each factor, split into the groups of the tables."""
    return jnp.split(each, np.cumsum([len(table) for table in tables])[:-1])


def _gumbels(
    samples: int,
    keys: Shaped[Array, " factors"],
    grids: FactorGrid,
    distinct: tuple[Bool[Array, "boxes _factors *_grid"], ...],
) -> Float[Array, "factors samples"]:
    """Draws of the largest value of every factor, for a single chain on several boxes."""
    each = jax.vmap(lambda k, mean, variance, new: gumbel(k, mean, variance, samples, new))
    tables = [[_flat(t) for t in group] for group in (grids.mean, grids.variance, distinct)]
    groups = zip(_grouped(keys, tables[0]), *tables, strict=True)
    return jnp.concatenate([each(*group) for group in groups])


def gumbel(
    key: Key,
    mean: Float[Array, " points"],
    variance: Float[Array, " points"],
    samples: int,
    distinct: Bool[Array, " points"] | bool = True,
) -> Float[Array, " samples"]:
    """Draws of about the largest of independent normals: a Gumbel distribution with its quartiles.

    Points that are not `distinct` repeat others.
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
