"""High dimensions by a factor graph (DEC-HBO).

    f(x) = Σ_I f_I(x_I)                                                        additive.decomposed, eq. 1
    x_t = argmax Σ_I mean_I(x_I) + √β_t std_I(x_I)                            factors.maxsum, eq. 2 to 4

Hoang, Hoang, Ouyang and Low, Decentralized high-dimensional Bayesian optimization with factor graphs
(2018).
"""

from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxbo._check import is_a, require, whole
from jaxbo._keys import aside
from jaxbo._shown import Shown
from jaxbo.algos.base.one_model import AbstractOneModel, State
from jaxbo.domains.base import AbstractDomain, Finite
from jaxbo.kernels.additive.decomposed import (
    AdditiveBelief,
    AdditiveShared,
    Decomposed,
    FactorGrid,
)
from jaxbo.kernels.additive.kernel import AdditiveKernel
from jaxbo.kernels.additive.policy import AbstractFactorPolicy, UpperBound
from jaxbo.kernels.choosing import failures
from jaxbo.kernels.choosing.elsewhere import elsewhere
from jaxbo.kernels.choosing.maximize import any_largest, ascend
from jaxbo.kernels.factors import maxsum
from jaxbo.kernels.factors.graph import AbstractGraph, DataGraph, FactorGraph, Tables
from jaxbo.types import Key, Point, Points, Scalar

#: Points from which the search goes on beside those that max-sum finds.
STARTS = 4
#: Points of the grid looked at on the way of messages; a search goes on from the best anyway.
DECODINGS = 10
#: Fewer than by default: Newton's method goes on from the point anyway.
KICKS = 200
#: Numbers that one value depends on, beyond which points go one after another: side by side they would
#: leave the cache, and take three times as long with 1811 variables (on two cores).
ALONE = 100_000
#: Of the bound on what messages miss.
SWEEPS = 3


class Search(Shown):
    """`gap` is how far the point found on each grid may be below the best point, in units of the tables.

    `exact` is true if there is no doubt, by elimination or on a tree. Finer grids come last.
    """

    gap: Float[Array, "*grids"]
    exact: Bool[Array, "*grids"]


def _shares(finer: Iterable[float] | float) -> tuple[float, ...]:
    return tuple(finer) if isinstance(finer, Iterable) else (finer,)


class DECHBO(AbstractOneModel):
    """DEC-HBO: workers evaluate a black box that is a sum of functions of a few variables each.

    `surrogate` and `policy` say which method it is:

        DEC-HBO               Decomposed(scopes, capacity)                      UpperBound()
        as in the paper       the same                                          UpperBound(joint=False)
        Thompson sampling     the same                                          FactorSample()
        structures learned    Decomposed(Sampled(), capacity)                   any
        random trees (RDUCB)  Decomposed(RandomTree(), capacity, refit_every=1) UpperBound()
        ADD-GP-UCB            Decomposed([[0], [1], ...], capacity)             UpperBound(joint=False)
        ADD-MES-G, ADD-MES-R  the same                                          MaxValueEntropy(paths=...)

    Messages between factors and variables find a point of the grid. If the graph is given and
    narrow, or a tree, the best point is found without them (`maxsum.solve`). Newton's method goes
    on from there over the continuous domain. It also starts from the best point observed, and from
    the best candidates. On a finite domain, all points are looked at.

    The info of a query says how far messages may have missed the best point of each grid
    (`Search`). With several structures the mean over them is maximized (eq. 5). If two queries from
    the same belief do not differ by themselves, the model takes busy workers to observe the
    expected value.

    Memory: that of `surrogate`; measured in a run of 35 observations in two dimensions with the
    defaults, 0.5 MB at most.

    Args:
        domain: The space to search.
        surrogate: The additive model of the black box.
        policy: The function to maximize. Default: `UpperBound()`.
        workers: Number of evaluations at the same time, at least 1. Default: 1.
        candidates: Number of points spread over the domain, at least 1. Newton's method starts from
            the best of them too. Default: 500.
        iterations: Rounds of messages between factors and variables, at least 1. Default: 30.
        steps: Steps of Newton's method from each start, at least 0. Default: 10.
        finer: Finer grids, each around the best point so far: a share of every axis in (0, 1), or
            several shares. Each grid takes up to as long as all grids before it. Default: none.

    Raises:
        ValueError: A part is of another class, a number is too small, or a share is outside of (0,
            1).

    Example:
        >>> import jax.random as jr
        >>> import jaxbo
        >>> model = jaxbo.Decomposed([[0], [1]], 12, grid=16, refit_every=None)
        >>> method = jaxbo.DECHBO(jaxbo.Cube(2), model, candidates=50)
        >>> state, trace = jaxbo.run(method, lambda x: -((x - 0.3) ** 2).sum(), 6, jr.key(0), initial=6)
        >>> trace.queries.shape, bool(trace.info.exact.all())
        ((12, 1, 2), True)
    """

    domain: AbstractDomain
    surrogate: Decomposed
    policy: AbstractFactorPolicy = eqx.field(default_factory=UpperBound)
    workers: int = eqx.field(static=True, default=1)
    candidates: int = eqx.field(static=True, default=500)
    iterations: int = eqx.field(static=True, default=30)
    steps: int = eqx.field(static=True, default=10)
    finer: tuple[float, ...] = eqx.field(static=True, default=(), converter=_shares)

    def __check_init__(self):
        is_a("surrogate", self.surrogate, Decomposed)
        is_a("policy", self.policy, AbstractFactorPolicy)
        whole("candidates", self.candidates, least=1)
        whole("iterations", self.iterations, least=1)
        whole("steps", self.steps, least=0)
        for share in self.finer:
            real = isinstance(share, Real) and 0 < share < 1
            require(real, f"finer grids have a share of every axis, got {self.finer}.")

    @property
    def targets(self) -> int:
        return self.workers

    @property
    def random(self) -> bool:
        return self.policy.random()

    def setup(self, key: Key) -> AdditiveShared:
        return self.surrogate.over(self.domain, key)

    def prepare(self, key: Key) -> Points:
        return self.domain.candidates(key, self.candidates)

    def query(self, key: Key, state: State, candidates: Points) -> tuple[Point, Search]:
        belief: AdditiveBelief = state.belief
        limits = failures.limits(state.past, candidates)
        query_key = aside(key)
        objective = self.policy(key, self.surrogate, state.shared, belief, candidates)
        each = jax.lax.map if _numbers(belief) > ALONE else _side_by_side
        values: Array = each(objective.function, candidates)
        values = jnp.asarray(jnp.where(limits.allowed, values, -jnp.inf))
        if isinstance(self.domain, Finite):
            every = Search(jnp.zeros((1, 1)), jnp.ones((1, 1), bool))
            best = candidates[any_largest(aside(query_key), values)]
            return elsewhere(query_key, state.past, limits, candidates, best), every
        graph = self._graph(state, belief)
        owners = self.domain.axes(self.surrogate.grid).owners

        def solved(points: Float[Array, "dim grid"], tables: Tables) -> tuple[Point, Search]:
            """The search of a kind: of the mean over chains, on a graph that has the factors of all."""
            packed = tuple(t.reshape(-1, *t.shape[2:]) / len(t) for t in tables)
            found = maxsum.solve(
                graph,
                packed,
                iterations=self.iterations,
                decodings=DECODINGS,
                kicks=KICKS,
                sweeps=SWEEPS,
            )
            x = self.domain.project(points[jnp.arange(len(owners)), found.x[owners]])
            return x, Search(found.gap, jnp.asarray(found.exact))

        def searched(grid: FactorGrid) -> tuple[Float[Array, "kinds dim"], Search]:
            """The search on a grid, given the beliefs of each chain there."""
            points = grid.points[0]  # the same for all of them
            return jax.vmap(lambda tables: solved(points, tables))(objective.on(grid))

        proposals, search = jax.vmap(searched, 1, 1)(self.surrogate.grids(belief))
        proposals = proposals.reshape(-1, self.domain.dim)
        for share in self.finer:
            center = proposals[jnp.argmax(each(objective.function, proposals))]
            near = self.surrogate.around(state.shared, belief, center, share)
            more, found = searched(near)
            proposals = jnp.concatenate([proposals, more])
            search = jax.tree.map(lambda a, b: jnp.column_stack([a, b]), search, found)
        # Before there is anything to tell points apart, the first of these is as good as any.
        best = candidates[jax.lax.top_k(values, min(STARTS, len(values)))[1]]
        observed = self.domain.project(self.surrogate.incumbent(belief))
        back = jax.vmap(lambda x: limits.toward(self.domain, observed, x))(proposals)
        starts = jnp.concatenate([best, back, observed[None]])

        def climb(x: Point) -> tuple[Point, Scalar]:
            function = objective.function
            x, value = ascend(function, self.domain, x, function(x), self.steps, limits=limits)
            allowed = limits.allow(x)
            if self.domain.constrained:
                allowed = allowed & self.domain.allows(x)
            return x, jnp.where(allowed, value, -jnp.inf)

        ends, values = each(climb, starts)
        best = ends[jnp.argmax(values)]
        return elsewhere(query_key, state.past, limits, candidates, best), search

    def _graph(self, state: State, belief: AdditiveBelief) -> AbstractGraph:
        grid, fixed = self.surrogate.grid, self.surrogate.structure.fixed
        variables = len(self.domain.axes(grid).columns)
        if fixed is not None:  # in the order of the tables: see `AbstractStructure.fixed`
            return FactorGraph((grid,) * variables, fixed)
        scopes = self.surrogate.scopes(state.shared, belief)
        order = self.surrogate.structure.order(scopes[0]) if len(scopes) == 1 else None
        return DataGraph(scopes.reshape(-1, scopes.shape[-1]), variables, grid, order)


def _numbers(belief: AdditiveBelief) -> int:
    """The places of all factors of all chains, times the observations that there is room for."""
    kernel = belief.whole.kernel
    assert isinstance(kernel, AdditiveKernel)
    return kernel.scopes.size * belief.whole.x.shape[1]


def _side_by_side(function: Callable[[Point], Any], points: Points) -> Any:
    return jax.vmap(function)(points)
