"""Whether a structure that is there is found, and the worth of knowing it: in 20, 50 and 100 dimensions.

    f(x) = Σ_v f_v(x_v) + Σ_{(i, j) ∈ tree} f_ij(x_i, x_j),    all drawn from GP(0, exp(-|.|² / 2 scale²))
    regret_t = max f - max over evaluations up to t of f, in deviations of f

Appendix B of the paper learns the factors but has no experiment of it. Every run has its own function:
a random tree of dim / 4 pairs on variables drawn at random, which overlap in every variable that is not
a leaf, and a factor for each variable; pairs have half of the prior variance. Its maximum is exact on a
grid, by messages on the tree; a few steps of Newton's method go on from there. The initial points are
the same for all methods. A model shares its variance evenly, so the true graph has every pair four
times.

    found    of the pairs in the tree, how many share a factor, mean over chains
    false    of the pairs that share a factor, how many are not in the tree

Chains take 1000 steps at every fit. "Random first" has half of its evaluations at uniform points, for
the structure's sake: a search for the maximum tells little of it. "At random points" has the same model
learn from uniform points instead of a method's own. "One each" knows of no pairs, and ADD-GP-UCB sums
up deviations beside. All processes are exact and fitted every 10 evaluations. The plain process is as
in `dec-synthetic`: a length scale for each coordinate with the prior of `Priors.scaled`, EI, and,
unlike the others, warped values.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int

from bench.claims import BY, Check, on_average, within
from bench.common.panels import figure
from bench.common.search import INITIAL
from bench.common.text import number
from bench.dec.functions import LENGTH_SCALE, Sum, draw
from bench.dec.methods import GRIDS, PLAIN, REFIT, decomposed, scaled
from bench.runner import Experiment, Options, Result, parts
from jaxbo import metrics
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.dec_hbo import DECHBO
from jaxbo.algos.random_search import RandomSearch
from jaxbo.domains.base import Cube
from jaxbo.kernels.additive.chain import Chain, Evidence, Scopes, shared
from jaxbo.kernels.additive.decomposed import AdditiveBelief, Decomposed
from jaxbo.kernels.additive.policy import UpperBound
from jaxbo.kernels.additive.structure import AbstractStructure, Given, RandomTree, Sampled
from jaxbo.runs.compiled import run
from jaxbo.types import Key, Point, Scalar

#: Dimensions, and runs in each.
DIMS = {20: 10, 50: 6, 100: 3}
PROBLEMS = tuple(f"{dim}-D" for dim in DIMS)
#: Moves of a chain at every fit.
STEPS_OF_CHAINS = 1000
#: How much more variance a pair has than a single variable: about dim / (dim / 4).
HEAVIER = 4


class Known(AbstractStructure):
    """Scopes that are known when the program runs, and not before."""

    scopes: Scopes

    def start(self, key: Key, dim: int) -> Scopes:
        del key, dim
        return self.scopes

    def update(self, key: Key, scopes: Scopes, dim: int, evidence: Evidence) -> Chain:
        return Chain(scopes, jnp.ones(()))


#: (dimension, function, evaluations) -> the algorithm
Method = Callable[[int, Sum, int], AbstractAlgorithm]


def _model(which: AbstractStructure, evaluations: int, grid: int = GRIDS[2]) -> Decomposed:
    return decomposed(which, evaluations, grid, warp=False)


def _structured(which: Callable[[], AbstractStructure]) -> Method:
    return lambda dim, function, evaluations: DECHBO(Cube(dim), _model(which(), evaluations))


def _single(policy: UpperBound = UpperBound()) -> Method:
    def method(dim: int, function: Sum, evaluations: int) -> DECHBO:
        alone = Given([(v,) for v in range(dim)])
        return DECHBO(Cube(dim), _model(alone, evaluations, GRIDS[1]), policy)

    return method


def _true(dim: int, function: Sum, evaluations: int) -> DECHBO:
    heavier = [function.scopes[dim:]] * (HEAVIER - 1)
    known = Known(jnp.concatenate([function.scopes, *heavier]))
    return DECHBO(Cube(dim), _model(known, evaluations))


def _learning() -> Sampled:
    return Sampled(steps=STEPS_OF_CHAINS)


LEARNED, TRUE, TREES = "DEC-HBO, learned", "DEC-HBO, true graph", "DEC-HBO, random trees"
RANDOM_FIRST = "DEC-HBO, learned, random first"
METHODS: dict[str, Method] = {
    TRUE: _true,
    LEARNED: _structured(_learning),
    RANDOM_FIRST: _structured(_learning),
    TREES: _structured(RandomTree),
    "DEC-HBO, one each": _single(),
    "ADD-GP-UCB": _single(UpperBound(joint=False)),
    PLAIN: lambda dim, function, n: scaled(Cube(dim), n),
    "random search": lambda dim, function, n: RandomSearch(Cube(dim), 1),
}
RIVALS = (TREES, "DEC-HBO, one each", "ADD-GP-UCB", PLAIN)
#: What learns at points that it did not choose.
AT_RANDOM = "at random points"
QUICK = (LEARNED, "random search")


def _run(options: Options) -> Result:
    # Whole periods between fits, after each of which the structure is looked at.
    rounds = -(-options.rounds_or(100, 10) // REFIT) * REFIT
    problems = options.problems_or(PROBLEMS, quick=["6-D"])
    dims = tuple(int(problem.removesuffix("-D")) for problem in problems)
    methods = QUICK if options.quick else tuple(METHODS)
    designs = () if options.quick else (AT_RANDOM,)
    runs = {dim: options.runs_or(DIMS.get(dim, 2), 2) for dim in dims}
    keys = {dim: jr.split(jr.key(options.seed), runs[dim]) for dim in dims}
    work = [(dim, name) for dim in dims for name in (*methods, *designs)]
    measures = {
        f"{dim}, {name}, {run}": functools.partial(
            _watching if name == AT_RANDOM else _searching, key, dim, name, rounds
        )
        for dim in dims
        for run, key in enumerate(keys[dim])
        for name in (*methods, *designs)
    }
    measured, folder = parts(options, "dec-structure", (rounds,), measures)
    curves: dict[str, np.ndarray] = {}
    found: dict[str, np.ndarray] = {}
    for dim, name in work:
        some = [measured[f"{dim}, {name}, {run}"] for run in range(runs[dim])]
        if name == AT_RANDOM:
            pairs = np.stack(some)
        else:
            curves[_title(dim, name)], pairs = map(np.stack, zip(*some, strict=True))
        if np.isfinite(pairs).any():
            found[_title(dim, name)] = pairs
    return Result(
        settings={
            "runs": runs,
            "evaluations": rounds,
            "initial points": INITIAL,
            "evaluations between fits": REFIT,
            "length scale": LENGTH_SCALE,
            "found": {name: pairs[:, 0].mean(axis=0) for name, pairs in found.items()},
            "false": {name: pairs[:, 1].mean(axis=0) for name, pairs in found.items()},
        },
        curves=curves,
        checks=checks(curves, found, dims),
        unit="simple regret, deviations of f",
        headers=("method", *(f"{problem}, s.e., found, false" for problem in problems)),
        rows=[
            (name, *(_cell(curves, found, _title(dim, name)) for dim in dims))
            for name in (*methods, *designs)
        ],
        figure=figure(
            curves,
            methods,
            problems,
            ylabel="simple regret, deviations of f",
        ),
        scratch=folder,
    )


def _title(dim: int, name: str) -> str:
    return f"{dim}-D, {name}"


def _searching(
    key: Key, dim: int, name: str, rounds: int
) -> tuple[Float[Array, " rounds"], Float[Array, "2 fits"]]:
    """Regret after every evaluation; the share of pairs found and of false pairs after every fit."""
    function_key, key = jr.split(key)
    function = draw(function_key, dim)
    blind = rounds // 2 // REFIT * REFIT if name == RANDOM_FIRST else 0
    algorithm = METHODS[name](dim, function, rounds)
    return _searched(algorithm, function, key, rounds, dim, blind)


@eqx.filter_jit
def _searched(
    algorithm: AbstractAlgorithm, function: Sum, key: Key, rounds: int, dim: int, blind: int
) -> tuple[Float[Array, " rounds"], Float[Array, "2 fits"]]:
    start_key, key = jr.split(key)
    state, first = run(algorithm, function, 0, start_key, initial=INITIAL + blind)

    def stage(state: Any, key: Key) -> tuple[Any, tuple[Array, Array]]:
        state, trace = run(algorithm, function, REFIT, key, state=state)
        return state, (trace.values[:, 0], _pairs(algorithm, state, function, dim))

    stages = (rounds - blind) // REFIT
    _, (values, pairs) = jax.lax.scan(stage, state, jr.split(key, stages))
    best = jax.lax.cummax(jnp.concatenate([first.values[:, 0], values.ravel()]))
    pairs = jnp.pad(pairs, ((blind // REFIT, 0), (0, 0)), constant_values=jnp.nan)
    return function.maximum(dim) - best[INITIAL:], pairs.T


def _pairs(algorithm: AbstractAlgorithm, state: Any, function: Sum, dim: int) -> Float[Array, "2"]:
    """The share of pairs found and of false pairs; NaN where no model has a structure."""
    if not isinstance(algorithm, DECHBO):
        return jnp.full((2,), jnp.nan)
    return held(algorithm.surrogate.scopes(state.shared, state.belief), function, dim)


def held(scopes: Int[Array, "chains factors arity"], function: Sum, dim: int) -> Float[Array, "2"]:
    """How many of the function's pairs share a factor, and how many pairs that share a factor are not the
    function's.
    """
    share = jnp.mean(jax.vmap(lambda s: shared(s, dim))(scopes), axis=0)
    pairs, total = shared(function.scopes, dim), jnp.sum(share)
    right = jnp.sum(share * pairs)
    false = jnp.where(total > 0, 1 - right / jnp.where(total > 0, total, 1), 0)
    return jnp.stack([right / jnp.sum(pairs), false])


def _watching(key: Key, dim: int, name: str, rounds: int) -> Float[Array, "2 fits"]:
    """The share of pairs found and of false pairs after every fit, from as many uniform points."""
    del name
    function_key, key = jr.split(key)
    model = _model(_learning(), rounds)
    return _learned(model, draw(function_key, dim), key, rounds, dim)


@eqx.filter_jit
def _learned(
    model: Decomposed, function: Sum, key: Key, rounds: int, dim: int
) -> Float[Array, "2 fits"]:
    model_key, point_key = jr.split(key)
    shared = model.setup(model_key, dim)
    points = Cube(dim).sample(point_key, INITIAL + rounds)
    values = jax.vmap(function.value)(points)

    def observe(belief: AdditiveBelief, item: tuple[Point, Scalar]) -> tuple[AdditiveBelief, None]:
        return model.condition(shared, belief, *item), None

    def stage(belief: AdditiveBelief, some: tuple[Array, Array]) -> tuple[AdditiveBelief, Array]:
        belief = model.refit(shared, jax.lax.scan(observe, belief, some)[0])
        return belief, held(model.scopes(shared, belief), function, dim)

    first = points[:INITIAL], values[:INITIAL]
    belief = jax.lax.scan(observe, model.start(shared), first)[0]
    rest = points[INITIAL:].reshape(-1, REFIT, dim), values[INITIAL:].reshape(-1, REFIT)
    return jax.lax.scan(stage, belief, rest)[1].T


def checks(
    curves: dict[str, np.ndarray], found: dict[str, np.ndarray], dims: tuple[int, ...]
) -> dict[str, Check]:
    """The gain of learning over chance, and of the method over the plain process."""
    claims: dict[str, Check] = {}
    for dim in dims:
        ends = {
            name: curves[_title(dim, name)][:, -1]
            for name in METHODS
            if _title(dim, name) in curves
        }
        for ours in (LEARNED, RANDOM_FIRST, TRUE):
            for rival in RIVALS:
                if ours in ends and rival in ends:
                    claim = f"{dim}-D: {ours} no worse than {rival} {BY}, ratio"
                    claims[claim] = within(ends[ours], ends[rival])
        for name in (LEARNED, RANDOM_FIRST, AT_RANDOM):
            if _title(dim, name) in found:
                claim = f"{dim}-D: {name}: at least half of the pairs found, share"
                claims[claim] = on_average(found[_title(dim, name)][:, 0, -1], least=0.5)
    return claims


def _cell(curves: dict[str, np.ndarray], found: dict[str, np.ndarray], name: str) -> str:
    parts = []
    if name in curves:
        parts += metrics.mean_and_error(curves[name][:, -1])
    if name in found:
        parts += list(found[name][:, :, -1].mean(axis=0))
    return " ".join(number(float(part)) for part in parts)


EXPERIMENT = Experiment(
    source="DEC-HBO, appendix B",
    about="overlapping pairs in 20 to 100 dimensions: found, given, guessed or left out",
    time="2 h",
    run=_run,
    problems=PROBLEMS,
)
