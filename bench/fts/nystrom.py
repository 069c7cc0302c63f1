"""Beyond the papers: FTS whose messages are functions on Nystrom features instead of Fourier features.

    f ~ GP(0, SE(length_scale)) on 1000 points of [0, 1]^D; the rest as in `fts-synthetic`: 50 peers with
    100 observations each of f ± 0.02, a target with one, p_t = 1 - 1/√t

A message is M numbers on either kind. Fourier features have the kernel's variance everywhere and err in
its correlations; Nystrom features, whose inducing points are common to all and picked without any data,
are right near their points and have no variance far from them. The target's own samples come from a
model of 300 Fourier features, alone and in FTS, so that nothing but the messages differs.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.common.text import number
from bench.fts.peers import (
    ALIKE,
    INITIAL,
    OWN_FEATURES,
    PEERS,
    Perturbed,
    regret,
    target_and_peers,
    values_of,
)
from bench.runner import Experiment, Options, Result, parts
from bench.tasks.synthetic import NOISE, POINTS, VALUES_VARIANCE
from jaxbo import metrics, plotting
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Cube, Finite
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes import features, nystrom
from jaxbo.kernels.processes.covariance import SquaredExponential, gram
from jaxbo.kernels.processes.features import Basis
from jaxbo.objectives.families import gp_draws, unit_range
from jaxbo.types import Key, Points

OBSERVATIONS = 100
#: Length scale by dimension: some 35, 50 and 150 features hold nearly all variance.
LENGTH_SCALES = {1: 0.03, 2: 0.12, 4: 0.4}
SIZES = (10, 20, 40, 80)
BASES: dict[str, Basis] = {
    "cosine": features.cosine,
    "sine-cosine": features.sine_cosine,
    "Nystrom": nystrom.basis(nystrom.greedy),
}
ALONE = "TS"
#: Features of which the kernel's error is the mean, and points at whose pairs it is taken.
DRAWS, PAIRED = 10, 300


def points(dim: int) -> Points:
    """The domain: an even grid, or points that cover the cube evenly."""
    if dim == 1:
        return jnp.linspace(0, 1, POINTS)[:, None]
    return Cube(dim).candidates(jr.key(0), POINTS)


def model(dim: int, size: int, **options: Any) -> Fixed:
    """Of `size` features."""
    kernel, noise = SquaredExponential(LENGTH_SCALES[dim]), NOISE / VALUES_VARIANCE
    return Fixed(kernel=kernel, size=size, noise=noise, **options)


def own_model(dim: int, rounds: int) -> Fixed:
    """The target's of its own function."""
    return model(dim, OWN_FEATURES, capacity=INITIAL + rounds)


@eqx.filter_jit
def drawn(key: Key, dim: int, runs: int) -> Float[Array, "runs points"]:
    """Functions to maximize."""
    return unit_range(gp_draws(key, SquaredExponential(LENGTH_SCALES[dim]), points(dim), runs))


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
    runs, rounds = options.runs_or(40, 3), options.rounds_or(30, 10)
    dims = tuple(LENGTH_SCALES)[: 1 if options.quick else None]
    sizes = SIZES[::3] if options.quick else SIZES
    bases = dict(list(BASES.items())[1 if options.quick else 0 :])
    run_key, function_key, feature_key = jr.split(jr.key(options.seed), 3)
    keys = jr.split(run_key, runs)
    measures, errors = {}, {}
    for dim in dims:
        own, at = own_model(dim, rounds), points(dim)
        functions = drawn(function_key, dim, runs)
        rest = functions, at, rounds, keys
        alone = TS(Finite(points(dim)), surrogate=own)
        measures[_name(dim, ALONE)] = functools.partial(values_of, alone, *rest)
        for label, basis in bases.items():
            for size in sizes:
                name = _name(dim, label, size)
                features = model(dim, size, basis=basis)
                peers, algorithm = (target_and_peers(at, features, o) for o in (None, own))
                measures[name] = functools.partial(
                    values_of, algorithm, *rest, peers, Perturbed(ALIKE), OBSERVATIONS
                )
                errors[name] = float(kernel_error(basis, dim, size, feature_key))
    values, folder = parts(options, "fts-nystrom", (runs, rounds), measures)
    curves = {name: regret(value) for name, value in values.items()}
    means = {name: curve.mean(axis=1) for name, curve in curves.items()}
    rows = []
    for name, values in means.items():
        mean, spread = map(float, metrics.mean_and_error(values))
        rows.append((name, *map(number, (errors.get(name), mean, spread))))
    return Result(
        settings={
            "runs": runs,
            "rounds": rounds,
            "initial points": INITIAL,
            "peers": PEERS,
            "observations of a peer": OBSERVATIONS,
            "points of the domain": POINTS,
            "length scales": LENGTH_SCALES,
            "noise variance": NOISE,
            "mean regret over all rounds": {name: float(m.mean()) for name, m in means.items()},
            "rms error of the kernel": errors,
        },
        curves=curves,
        headers=("messages", "error of the kernel", "mean regret", "s.e."),
        rows=rows,
        figure=_figure(means, dims, list(bases), sizes),
        scratch=folder,
    )


def _name(dim: int, label: str, size: int | None = None) -> str:
    return f"D = {dim}, {label}" + ("" if size is None else f", M = {size}")


def _figure(
    means: dict[str, np.ndarray],
    dims: tuple[int, ...],
    bases: list[str],
    sizes: tuple[int, ...],
) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(dims), 4), dpi=plotting.DPI, layout="constrained")
    for ax, dim in zip(np.atleast_1d(figure.subplots(1, len(dims))), dims, strict=True):
        for color, label in zip(plotting.PALETTE, bases, strict=False):
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
    time="15 min",
    run=_run,
)
