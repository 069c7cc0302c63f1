"""Beyond the papers: FTS whose messages are functions on Nystrom features instead of Fourier ones.

    f ~ GP(0, SE(length_scale)) on 1000 points of [0, 1]^D, scaled to [0, 1]
    agent n:  f ± 0.02, the sign drawn at every point;   y has noise of variance 0.01
    regret_t = 1 - max over an agent's queries up to round t of f, the mean of all agents

A message is M numbers on either kind. Fourier features have the kernel's variance everywhere and err
in its correlations; Nystrom features, whose inducing points are common to all and picked without any
data, are right near their points and have no variance far from them. All agents' own samples come from
one model of 300 Fourier features, so that nothing but the messages differs.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.fts_synthetic import ALIKE, NOISE, OWN_FEATURES, POINTS, VALUES_VARIANCE
from bench.runner import Experiment, Options, Result, number, parts
from jaxbo import metrics, plotting
from jaxbo.algos.base import AbstractAlgorithm
from jaxbo.algos.fts import FTS
from jaxbo.algos.ts import TS
from jaxbo.domains import Cube, Finite
from jaxbo.kernels import features, nystrom
from jaxbo.kernels.covariance import SquaredExponential, gram
from jaxbo.kernels.features import Basis
from jaxbo.kernels.surrogate import Fixed
from jaxbo.loop import run
from jaxbo.objectives import OnGrid, gp_draws, perturbed, unit_range
from jaxbo.schedules import Power
from jaxbo.types import Key, Points

AGENTS = 20
#: Length scale by dimension: some 35, 50 and 150 features hold nearly all variance.
LENGTH_SCALES = {1: 0.03, 2: 0.12, 4: 0.4}
SIZES = (10, 20, 40, 80, 160)
BASES: dict[str, Basis] = {
    "cosine": features.cosine,
    "sine-cosine": features.sine_cosine,
    "Nystrom": nystrom.basis(nystrom.greedy),
}
ALONE = "TS"
#: Features of which the kernel's error is the mean, and points at whose pairs it is taken.
DRAWS, PAIRED = 10, 300
#: Runs that are computed at the same time.
BATCH = 10


def points(dim: int) -> Points:
    """The domain: an even grid, or points that cover the cube evenly."""
    if dim == 1:
        return jnp.linspace(0, 1, POINTS)[:, None]
    return Cube(dim).candidates(jr.key(0), POINTS)


def method(dim: int, rounds: int, basis: Basis | None = None, size: int = 0) -> AbstractAlgorithm:
    """FTS with messages of `size` numbers on such features, or without any every agent alone."""
    kernel, noise = SquaredExponential(LENGTH_SCALES[dim]), NOISE / VALUES_VARIANCE
    own = Fixed(kernel=kernel, size=OWN_FEATURES, noise=noise, capacity=1 + rounds)
    domain = Finite(points(dim))
    if basis is None:
        return TS(domain, AGENTS, own)
    sent = Fixed(kernel=kernel, size=size, noise=noise, basis=basis)
    return FTS(domain, AGENTS, features=sent, own=own, mixing=Power(0.5))


@eqx.filter_jit
def regret(
    algorithm: AbstractAlgorithm, dim: int, rounds: int, keys: Array
) -> Float[Array, "runs rounds"]:
    """Mean over the agents."""
    at = points(dim)

    def one(key: Key) -> Array:
        function_key, sign_key, run_key = jr.split(key, 3)
        f = unit_range(gp_draws(function_key, SquaredExponential(LENGTH_SCALES[dim]), at, 1))[0]
        objective = OnGrid(perturbed(sign_key, f, ALIKE, AGENTS), at, NOISE**0.5)
        _, trace = run(algorithm, objective, rounds, run_key, initial=1)
        clean = OnGrid(values=f[None, :], points=at)
        values = jax.vmap(jax.vmap(lambda x: clean.noiseless(jnp.zeros((), int), x)))(trace.queries)
        return 1 - jax.lax.cummax(values, axis=0).mean(axis=1)[1:]

    return jax.lax.map(one, keys, batch_size=BATCH)


@eqx.filter_jit
def kernel_error(basis: Basis, dim: int, size: int, key: Key) -> Array:
    """Root mean square of φ(x)'φ(x') - k(x, x')."""
    kernel = SquaredExponential(LENGTH_SCALES[dim])
    at = points(dim)[:: POINTS // PAIRED]
    exact = gram(kernel, at, at)

    def one(key: Key) -> Array:
        phi = jax.vmap(basis(key, kernel, dim, size))(at)
        return jnp.mean((phi @ phi.T - exact) ** 2)

    return jnp.sqrt(jnp.mean(jax.lax.map(one, jr.split(key, DRAWS))))


def _run(options: Options) -> Result:
    runs, rounds = options.runs_or(50, 3), options.rounds_or(30, 10)
    dims = tuple(LENGTH_SCALES)[: 1 if options.quick else None]
    sizes = SIZES[::3] if options.quick else SIZES
    run_key, feature_key = jr.split(jr.key(options.seed))
    keys = jr.split(run_key, runs)
    measures, errors = {}, {}
    for dim in dims:
        alone = method(dim, rounds)
        measures[_name(dim, ALONE)] = functools.partial(regret, alone, dim, rounds, keys)
        for label, basis in BASES.items():
            for size in sizes:
                algorithm, name = method(dim, rounds, basis, size), _name(dim, label, size)
                measures[name] = functools.partial(regret, algorithm, dim, rounds, keys)
                errors[name] = float(kernel_error(basis, dim, size, feature_key))
    curves, folder = parts(options, "fts-nystrom", (runs, rounds), measures)
    means = {name: curve.mean(axis=1) for name, curve in curves.items()}
    rows = []
    for name, values in means.items():
        mean, spread = map(float, metrics.mean_and_error(values))
        rows.append((name, *map(number, (errors.get(name), mean, spread))))
    return Result(
        settings={
            "runs": runs,
            "rounds": rounds,
            "initial points": 1,
            "agents": AGENTS,
            "points of the domain": POINTS,
            "length scales": LENGTH_SCALES,
            "noise variance": NOISE,
            "mean regret over all rounds": {name: float(m.mean()) for name, m in means.items()},
            "rms error of the kernel": errors,
        },
        curves=curves,
        headers=("messages", "error of the kernel", "mean regret", "s.e."),
        rows=rows,
        figure=_figure(means, dims, sizes),
        scratch=folder,
    )


def _name(dim: int, label: str, size: int | None = None) -> str:
    return f"D = {dim}, {label}" + ("" if size is None else f", M = {size}")


def _figure(means: dict[str, np.ndarray], dims: tuple[int, ...], sizes: tuple[int, ...]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(dims), 4), dpi=plotting.DPI, layout="constrained")
    colors = (plotting.SOFT, plotting.BLUE, plotting.RED)
    for ax, dim in zip(np.atleast_1d(figure.subplots(1, len(dims))), dims, strict=True):
        for color, label in zip(colors, BASES, strict=True):
            found = [means[_name(dim, label, size)] for size in sizes]
            low, high = zip(*map(metrics.confidence_interval, found), strict=True)
            ax.fill_between(sizes, low, high, color=color, alpha=0.16, lw=0)
            ax.plot(sizes, [f.mean() for f in found], color=color, marker="o", ms=3, label=label)
        ax.axhline(means[_name(dim, ALONE)].mean(), color=plotting.INK, lw=1, ls=":", label=ALONE)
        ax.set_xscale("log")
        ax.set_xticks(sizes, labels=map(str, sizes))
        ax.minorticks_off()
        ax.set_title(f"D = {dim}, length scale {LENGTH_SCALES[dim]}")
        ax.set_xlabel("numbers a message, M")
        ax.set_ylabel("mean regret over all rounds")
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False)
    return figure


EXPERIMENT = Experiment(
    source="beyond the papers",
    about="FTS on Nystrom features and on Fourier features: regret against numbers a message",
    time="10 min",
    run=_run,
)
