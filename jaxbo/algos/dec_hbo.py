"""High dimensions by a factor graph (DEC-HBO).

    f(x) = Σ_I f_I(x_I)                                                        kernels.decomposed, eq. 1
    x_t = argmax Σ_I mean_I(x_I) + √β_t std_I(x_I)                            kernels.maxsum, eq. 2 to 4

Hoang, Hoang, Ouyang and Low, Decentralized high-dimensional Bayesian optimization with factor graphs
(2018).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxbo._check import is_a, require, whole
from jaxbo.algos.one_model import AbstractOneModel, State
from jaxbo.domains import AbstractDomain, Finite
from jaxbo.kernels import acquisition, maxsum
from jaxbo.kernels.decomposed import Belief, Decomposed
from jaxbo.kernels.factor_graph import AbstractGraph, DataGraph, FactorGraph, Tables
from jaxbo.kernels.maximize import ascend
from jaxbo.types import Function, Key, Point, Points, Scalar, floating

#: Points from which the search goes on beside those that max-sum finds.
STARTS = 4


class DECHBO(AbstractOneModel):
    """Workers evaluate one black box whose model is a sum of functions of a few variables each.

    `iterations` rounds of messages between factors and variables find a point of the grid (exactly,
    where elimination can), from which `steps` of Newton's method go on over the continuous domain; so
    they do from the best point observed and from the best of `candidates` spread over the domain.
    `beta` is the squared number of standard deviations.

    The sum of the factors' deviations, which the paper maximizes, is larger than the deviation of
    their sum, which explores too much. With `joint`, messages propose the maximizers of that sum and of
    the tighter Σ_I (mean_I + √β variance_I / 2s), s the deviation of f at the former, and the point
    asked is the best by the upper bound of f itself. Without, what is maximized is the paper's sum.

    Under several structures the bounds are averaged (eq. 5). Busy workers are taken to observe what is
    expected. On a finite domain all its points are looked at. A `Space` is searched coordinate by
    coordinate, those of one choice too. Memory: that of `surrogate`.
    """

    domain: AbstractDomain
    surrogate: Decomposed
    beta: Scalar = eqx.field(converter=floating, default=2.0)
    joint: bool = eqx.field(static=True, default=True)
    workers: int = eqx.field(static=True, default=1)
    iterations: int = eqx.field(static=True, default=30)
    candidates: int = eqx.field(static=True, default=500)
    steps: int = eqx.field(static=True, default=10)

    def __check_init__(self):
        is_a("surrogate", self.surrogate, Decomposed)
        require(self.beta >= 0, f"beta must be at least 0, got {self.beta}.")
        whole("iterations", self.iterations, least=1)
        whole("steps", self.steps, least=0)

    @property
    def targets(self) -> int:
        return self.workers

    def random(self) -> bool:
        return False

    def prepare(self, key: Key) -> Points:
        return self.domain.candidates(key, self.candidates)

    def query(self, key: Key, state: State, belief: Belief, prepared: Points) -> Point:
        function = self.bound(state, belief)
        values = jax.vmap(function)(prepared)
        if isinstance(self.domain, Finite):
            return prepared[jnp.argmax(values)]
        mean, variance = self.surrogate.factors(belief)
        graph = self._graph(belief)
        dim, points = self.domain.dim, self.surrogate.points(self.domain.dim)

        def solved(bounds: Float[Array, "chains factors ..."]) -> Point:
            tables = self._pack(graph, bounds)
            found = maxsum.solve(graph, tables, iterations=self.iterations, sweeps=1)
            return self.domain.project(points[jnp.arange(dim), found.x[:dim]])

        beta = self.beta.astype(mean.dtype)
        first = solved(mean + jnp.sqrt(beta * variance))
        _, size = self.surrogate.standardized(state.shared, belief, first)
        std = jnp.sqrt(jnp.maximum(size, acquisition.variance_floor(size.dtype)))
        # √v ≤ v / 2s + s / 2 for any s > 0, with equality at s = √v.
        squares = jax.vmap(lambda v, s: v / (2 * s))(variance, std)
        second = solved(mean + jnp.sqrt(beta) * squares)
        # Before there is anything to tell points apart, the first of these is as good as any.
        best = prepared[jax.lax.top_k(values, min(STARTS, len(values)))[1]]
        starts = jnp.concatenate([best, jnp.stack([first, second, belief.incumbent()])])
        climb = lambda x: ascend(function, self.domain, x, function(x), self.steps)  # noqa: E731
        ends, values = jax.vmap(climb)(starts)
        return ends[jnp.argmax(values)]

    def bound(self, state: State, belief: Belief) -> Function:
        """What is maximized: an upper confidence bound of f, for standardized values."""

        def upper(mean: Float[Array, "*shape"], variance: Float[Array, "*shape"]) -> Array:
            std = jnp.sqrt(jnp.maximum(variance, acquisition.variance_floor(variance.dtype)))
            return mean + jnp.sqrt(self.beta.astype(mean.dtype)) * std

        def bound(x: Point) -> Scalar:
            if self.joint:
                return jnp.mean(upper(*self.surrogate.standardized(state.shared, belief, x)))
            return jnp.mean(jnp.sum(upper(*self.surrogate.parts(belief, x)), axis=1))

        return bound

    def _graph(self, belief: Belief) -> AbstractGraph:
        fixed = self.surrogate.structure.fixed
        if fixed is not None:
            return FactorGraph((self.surrogate.grid,) * self.domain.dim, fixed)
        scopes = self.surrogate.scopes(belief)
        scopes = scopes.reshape(-1, scopes.shape[-1])
        return DataGraph(scopes, self.domain.dim, self.surrogate.grid)

    def _pack(self, graph: AbstractGraph, tables: Float[Array, "chains factors ..."]) -> Tables:
        """The tables of a graph, averaged over chains, from those padded to the largest factor."""
        if not isinstance(graph, FactorGraph):
            return (tables.reshape(-1, *tables.shape[2:]) / len(tables),)
        packed = []
        for group in graph.members:
            table = tables[0, jnp.array(group.numbers)]
            packed.append(table[(..., *(0,) * (tables.ndim - 2 - len(group.shape)))])
        return tuple(packed)
