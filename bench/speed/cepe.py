"""CEPE: a whole run beside Algorithm 1 in NumPy, and sketched posteriors beside exact posteriors.

50 agents, 900 points, 2000 rounds of which 159 explore. The plain implementation factorizes every agent's
matrix after every exploration, in float64, and looks up its table of means in the rounds between.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float
from scipy import linalg as dense

from bench.cepe.setting import AGENTS, LENGTH_SCALE, NOISE, cepe, federation, grid
from bench.common.timing import Figure, compiled, race
from jaxbo import schedules
from jaxbo.domains.base import Regions
from jaxbo.kernels.processes import nystrom
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.kernels.processes.posterior import Posterior
from jaxbo.runs.compiled import run
from jaxbo.types import Key, Point, Scalar

ROUNDS, MANY = 2000, 1000
#: Seconds that a run is to take, beside compilation.
GOAL = 2.0
#: Horizons between which memory is to be the same.
HORIZONS = (2000, 8000)
#: Observations, inducing points and test points of the sketches.
OBSERVATIONS, INDUCING, TESTED = (100, 1000, 10_000), 128, 200
#: Observations of the wide domain, its length scale and its sub-regions.
WIDE, SHORT_SCALE, REGIONS = 4000, 0.05, Regions((4, 4))


def figures(key: Key, repeats: int, quick: bool) -> list[Figure]:
    """The figures of runs, of memory and of sketches."""
    rounds = ROUNDS // 10 if quick else ROUNDS
    found = _runs(key, rounds, repeats)
    if not quick:
        found += _memory(key) + _many(key, rounds)
    return found + _sketches(key, OBSERVATIONS[: 2 if quick else None], repeats) + _regions(key)


def _program(agents: int, rounds: int, numbers: np.ndarray) -> Any:
    method = cepe(numbers, agents)

    def one(key: Key) -> tuple[Array, Array]:
        drawn = federation(key, "Branin", agents)
        algorithm = eqx.tree_at(lambda a: a.alpha, method, drawn.alpha)
        _, trace = run(algorithm, drawn, rounds, key)
        return trace.queries, trace.values

    return one


def _runs(key: Key, rounds: int, repeats: int) -> list[Figure]:
    numbers = schedules.growing(rounds)
    program, compiling = compiled(_program(AGENTS, rounds, numbers), key)
    seconds = race({"ours": lambda: program(key)}, repeats)["ours"]
    drawn = federation(key, "Branin", AGENTS)
    plain = race({"plain": lambda: algorithm1(drawn, schedules.explores(numbers))}, 1)["plain"]
    best = float(seconds.min())
    name = f"CEPE, {AGENTS} agents, 900 points, {rounds} rounds"
    return [
        Figure(
            name,
            best,
            "s",
            "NumPy",
            float(plain.min()) / best,
            goal=f"<= {GOAL:g}",
            values=tuple(map(float, seconds)),
        ),
        Figure(f"{name}: compilation", compiling, "s"),
    ]


def _memory(key: Key) -> list[Figure]:
    """The bytes of the whole program but its results, for horizons with the same exploration."""
    numbers = np.minimum(schedules.growing(max(HORIZONS)), 159.0)
    sizes = []
    for rounds in HORIZONS:
        one = _program(AGENTS, rounds, numbers)
        trace = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.eval_shape(one, key))
        stats = compiled(one, key)[0].memory_analysis()
        # The table of what is returned is carried through the loop, and is no state of the method.
        sizes.append(max(stats.temp_size_in_bytes + stats.output_size_in_bytes - trace, 0) / 2**20)
    few, many = HORIZONS
    name = f"CEPE, memory beside the trace of {many} rounds over that of {few} ({sizes[0]:.2g} MiB)"
    return [Figure(name, sizes[1] / sizes[0], "times", goal="<= 1.1")]


def _many(key: Key, rounds: int) -> list[Figure]:
    program, _ = compiled(_program(MANY, rounds, schedules.growing(rounds)), key)
    seconds = race({"ours": lambda: program(key)}, 1)["ours"]
    return [Figure(f"CEPE, {MANY} agents, 900 points, {rounds} rounds", float(seconds.min()), "s")]


def algorithm1(drawn: Any, explores: np.ndarray) -> Float[np.ndarray, "rounds agents"]:
    """The numbers of the points that are queried."""
    points, rng = np.asarray(grid(), np.float64), np.random.default_rng(0)
    squares = ((points[:, None] - points[None]) ** 2).sum(-1)
    K = np.exp(-squares / 2 / LENGTH_SCALE**2)
    own = jax.vmap(lambda p: jax.vmap(lambda x: drawn.value(p, x))(grid()))(drawn.powers)
    h, alpha = np.asarray(own, np.float64), np.asarray(drawn.alpha, np.float64)[:, None]
    agents = len(h)
    means, variances = np.zeros_like(h), np.ones_like(h)
    x: list[list[int]] = [[] for _ in range(agents)]
    y: list[list[float]] = [[] for _ in range(agents)]
    queries = np.zeros((len(explores), agents), int)
    for t, explore in enumerate(explores):
        if not explore:
            wanted = alpha * means + (1 - alpha) * means.mean(0, keepdims=True)
            queries[t] = wanted.argmax(1)
            continue
        queries[t] = variances.argmax(1)
        for j, i in enumerate(queries[t]):
            x[j].append(int(i))
            y[j].append(h[j, i] + NOISE**0.5 * rng.normal())
            A = K[np.ix_(x[j], x[j])] + NOISE * np.eye(len(x[j]))
            L = dense.cholesky(A, lower=True)
            white = dense.solve_triangular(L, K[x[j]], lower=True)
            means[j] = white.T @ dense.solve_triangular(L, np.array(y[j]), lower=True)
            variances[j] = 1 - (white**2).sum(0)
    return queries


# ---------------------------------------------------------------- sketches


def _sketches(key: Key, numbers: tuple[int, ...], repeats: int) -> list[Figure]:
    """Posteriors of `TESTED` points, with inducing points picked greedily."""
    found = []
    for number in numbers:
        x_key, noise_key, pick_key, test_key = jr.split(jr.fold_in(key, number), 4)
        x, tested = jr.uniform(x_key, (number, 2)), jr.uniform(test_key, (TESTED, 2))
        noise = NOISE**0.5 * jr.normal(noise_key, (number,))
        y = jnp.sin(6 * x[:, 0]) * jnp.cos(5 * x[:, 1]) + noise

        program, _ = compiled(sketched, pick_key, x, y, tested)
        calls = {
            "ours": lambda p=program, a=(pick_key, x, y, tested): p(*a),
            "exact": lambda a=(x, y, tested): exact(*(np.asarray(b, np.float64) for b in a)),
        }
        seconds = race(calls, min(repeats, 2 if number > 1000 else 5))
        mean, variance = program(pick_key, x, y, tested)
        true_mean, true_variance = calls["exact"]()
        best = float(seconds["ours"].min())
        name = f"sketch of {number} observations, {min(INDUCING, number)} inducing points"
        ratio = float(seconds["exact"].min()) / best
        found += [
            Figure(name, 1e3 * best, "ms", "an exact process, SciPy", ratio),
            Figure(f"{name}: largest error of the mean", float(abs(mean - true_mean).max()), ""),
            Figure(
                f"{name}: median relative error of the variance",
                float(np.median(abs(variance - true_variance) / true_variance)),
                "",
            ),
        ]
    return found


def _regions(key: Key) -> list[Figure]:
    """A wide domain: a sketch for each of its sub-regions beside a single sketch."""
    x_key, noise_key, pick_key, test_key = jr.split(jr.fold_in(key, WIDE), 4)
    x, tested = jr.uniform(x_key, (WIDE, 2)), jr.uniform(test_key, (TESTED, 2))
    y = jnp.sin(30 * x[:, 0]) * jnp.cos(25 * x[:, 1]) + NOISE**0.5 * jr.normal(noise_key, (WIDE,))
    kernel = SquaredExponential(SHORT_SCALE)

    def local(pick: Key, x: Array, y: Array, tested: Array) -> Array:
        xs, ys = nystrom.split(REGIONS, x, y, WIDE // 3, 2.5 * SHORT_SCALE)
        sketches = jax.vmap(lambda x, y: sketch(pick, kernel, x, y))(xs, ys)

        def mean(p: Point) -> Scalar:
            phi, belief = jax.tree.map(lambda leaf: leaf[REGIONS.assign(p)], sketches)
            return nystrom.predict(phi, belief, p)[0]

        return jax.vmap(mean)(tested)

    def one(key: Key, x: Array, y: Array, tested: Array) -> Array:
        phi, belief = sketch(key, kernel, x, y)
        return jax.vmap(lambda p: nystrom.predict(phi, belief, p)[0])(tested)

    given = pick_key, x, y, tested
    methods: dict[str, Callable[..., Array]] = {"local": local, "one": one}
    programs = {name: compiled(method, *given)[0] for name, method in methods.items()}
    calls = {name: functools.partial(program, *given) for name, program in programs.items()}
    seconds = race(calls, 2)
    best = {name: float(taken.min()) for name, taken in seconds.items()}
    in_float64 = (np.asarray(a, np.float64) for a in (x, y, tested))
    truth, _ = exact(*in_float64, scale=SHORT_SCALE)
    errors = {
        name: float(np.sqrt(np.mean((np.asarray(call()) - truth) ** 2)))
        for name, call in calls.items()
    }
    each = f"{INDUCING} inducing points"
    name = f"sketch of {WIDE} observations, {REGIONS.count} sub-regions of {each}"
    return [
        Figure(name, 1e3 * best["local"], "ms", f"one of {each}", best["one"] / best["local"]),
        Figure(f"{name}: root mean square error of the mean", errors["local"], ""),
        Figure(f"one of {each}: root mean square error of the mean", errors["one"], ""),
    ]


def sketch(
    key: Key, kernel: SquaredExponential, x: Array, y: Array
) -> tuple[nystrom.Nystrom, Posterior]:
    """Features of greedy inducing points, and the posterior of their weights given the observations."""
    size = min(INDUCING, x.shape[0])
    chosen = nystrom.greedy(key, kernel, x, size, jnp.isfinite(y))
    phi = nystrom.feature_map(kernel, x[chosen.indices], jnp.arange(size) < chosen.count)
    return phi, nystrom.condition(phi, NOISE, x, y)


def sketched(key: Key, x: Array, y: Array, tested: Array) -> tuple[Array, Array]:
    """Mean and variance by inducing points."""
    phi, belief = sketch(key, SquaredExponential(LENGTH_SCALE), x, y)
    return jax.vmap(lambda p: nystrom.predict(phi, belief, p))(tested)


def exact(
    x: np.ndarray, y: np.ndarray, tested: np.ndarray, *, scale: float = LENGTH_SCALE
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the exact process in float64."""

    def covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        squares = (a**2).sum(1)[:, None] - 2 * a @ b.T + (b**2).sum(1)[None]
        return np.exp(-squares / 2 / scale**2)

    A = covariance(x, x)
    A[np.diag_indices_from(A)] += NOISE
    L = dense.cholesky(A, lower=True, overwrite_a=True)
    white = dense.solve_triangular(L, covariance(x, tested), lower=True)
    return white.T @ dense.solve_triangular(L, y, lower=True), 1 - (white**2).sum(0)
