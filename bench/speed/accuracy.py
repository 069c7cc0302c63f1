"""Accuracy of float32: the posterior against float64 NumPy, the cosine against the exact fraction.

    variance error = median |v - v64| / v64,   mean error = max |m - m64| / max |m64|

over points of the square, after t observations. The program beside it is the plain formula: the Cholesky
factor of Phi'Phi + noise I, and `jnp.cos`.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench import claims
from bench.common.timing import Figure, race
from jaxbo.kernels.processes import features, posterior
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.kernels.processes.features import cos_turns
from jaxbo.types import Key

DIM, OTHERS = 2, 500


class PosteriorSetting(NamedTuple):
    """The errors of a posterior; the last two are the errors to be reached."""

    scale: float
    noise: float
    size: int
    points: int
    variance: float
    mean: float

    def name(self) -> str:
        return f"l={self.scale:g} noise={self.noise:g} M={self.size} t={self.points}"


SETTINGS = (
    PosteriorSetting(0.2, 1e-2, 100, 50, 3e-7, 2e-7),
    PosteriorSetting(0.2, 1e-4, 100, 50, 1e-6, 2e-6),
    PosteriorSetting(0.2, 1e-6, 100, 60, 1e-5, 3e-5),
    PosteriorSetting(0.5, 1e-6, 200, 150, 4e-5, 6e-7),
    PosteriorSetting(0.5, 1e-4, 1000, 500, 5e-6, 2e-7),
)

#: Largest argument of the cosine in turns, and how many are tried.
TURNS, ARGUMENTS = 1000, 4_000_000


class Data(NamedTuple):
    """Features and values of observations, and features of other points."""

    phis: Float[Array, "points features"]
    ys: Float[Array, " points"]
    others: Float[Array, "unseen features"]


# ---------------------------------------------------------------- posterior


def posterior_figures(key: Key, runs: int) -> list[Figure]:
    """Errors of both forms of the root, the mean over `runs` data sets."""
    found = []
    for setting in SETTINGS:
        errors = [_errors(jr.fold_in(key, i), setting) for i in range(runs)]
        every = {name: np.array([e[name] for e in errors]) for name in errors[0]}
        middle = {name: values.mean(axis=0) for name, values in every.items()}
        for form in ("dense", "product"):
            for i, (part, goal) in enumerate(
                [("variance", setting.variance), ("mean", setting.mean)]
            ):
                value, theirs = float(middle[form][i]), float(middle["Cholesky"][i])
                found.append(
                    Figure(
                        f"posterior {part}, {form} root, {setting.name()}",
                        value,
                        "relative error",
                        beside="Cholesky in float32",
                        # Where it is not positive definite after rounding there is no other answer.
                        ratio=float("inf") if np.isnan(theirs) else theirs / value,
                        values=tuple(every[form][:, i]),
                        goal=f"<= {goal:g}",
                        sample=claims.MEAN,
                    )
                )
    return found


def _errors(key: Key, setting: PosteriorSetting) -> dict[str, tuple[float, float]]:
    data = _data(key, setting)
    noise = jnp.asarray(setting.noise, jnp.float32)
    exact = _by_cholesky(data, float(noise), np.float64)
    found = {"Cholesky": _by_cholesky(data, float(noise), np.float32)}
    for name, capacity in (("dense", None), ("product", setting.points)):
        start = posterior.prior(setting.size, noise, capacity=capacity)
        found[name] = _predictions(start, data)
    return {name: _compare(predictions, exact) for name, predictions in found.items()}


@partial(jax.jit, static_argnums=1)
def _data(key: Key, setting: PosteriorSetting) -> Data:
    map_key, point_key, weight_key, noise_key = jr.split(key, 4)
    kernel = SquaredExponential(jnp.asarray(setting.scale, jnp.float32))
    phi = features.cosine(map_key, kernel, DIM, setting.size, features.independent)
    points = jr.uniform(point_key, (setting.points + OTHERS, DIM), jnp.float32)
    phis, others = jnp.split(jax.vmap(phi)(points), [setting.points])
    w = jr.normal(weight_key, (setting.size,), jnp.float32)
    error = jr.normal(noise_key, (setting.points,), jnp.float32)
    return Data(phis, phis @ w + np.float32(setting.noise) ** 0.5 * error, others)


@jax.jit
def _predictions(
    start: posterior.Posterior, data: Data
) -> tuple[Float[Array, " unseen"], Float[Array, " unseen"]]:
    told = posterior.condition_all(start, data.phis, data.ys)
    return jax.vmap(lambda phi: posterior.predict(told, phi))(data.others)


def _by_cholesky(data: Data, noise: float, dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance from the normal equations; NaN where they cannot be factorized."""
    phis, ys, others = (np.asarray(a, dtype) for a in data)
    try:
        L = np.linalg.cholesky(phis.T @ phis + dtype(noise) * np.eye(phis.shape[1], dtype=dtype))
    except np.linalg.LinAlgError:
        nothing = np.full(len(others), np.nan)
        return nothing, nothing
    white = np.linalg.solve(L, others.T)
    return white.T @ np.linalg.solve(L, phis.T @ ys), dtype(noise) * np.sum(white**2, axis=0)


def _compare(found: tuple, exact: tuple[np.ndarray, np.ndarray]) -> tuple[float, float]:
    (mean, variance), (mean64, variance64) = (np.asarray(a, np.float64) for a in found), exact
    return (
        float(np.median(np.abs(variance - variance64) / variance64)),
        float(np.max(np.abs(mean - mean64)) / np.max(np.abs(mean64))),
    )


# ---------------------------------------------------------------- cosine


def cosine_figures(key: Key, repeats: int) -> list[Figure]:
    """Error of the cosine in turns up to `TURNS`, and its speed inside of a larger computation."""
    u = jr.uniform(key, (ARGUMENTS,), jnp.float32, -TURNS, TURNS)
    exact = np.asarray(u, np.float64)
    exact = np.cos(2 * np.pi * (exact - np.rint(exact)))
    library = lambda u: jnp.cos(2 * np.pi * u)  # noqa: E731
    own, theirs = (
        float(np.max(np.abs(np.asarray(jax.jit(cosine)(u), np.float64) - exact)))
        for cosine in (cos_turns, library)
    )
    error = Figure(
        f"cosine, up to {TURNS} turns",
        own,
        "absolute error",
        beside="jnp.cos",
        ratio=theirs / own,
        goal="<= 2e-06",
    )
    # The arguments are made and the cosines summed up in registers: memory does not count.
    rows, columns = u[:2000], u[2000:6000]
    seconds = race(
        {
            "own": partial(jax.jit(_sum_of(cos_turns)), rows, columns),
            "library": partial(jax.jit(_sum_of(library)), rows, columns),
        },
        repeats,
    )
    own, theirs = (float(np.min(times)) for times in seconds.values())
    count = rows.size * columns.size / 1e9
    speed = Figure(
        "cosine",
        count / own,
        "billion a second",
        beside="jnp.cos",
        ratio=theirs / own,
        values=tuple(count / seconds["own"]),
        goal=">= 10 x",
    )
    return [error, speed]


def _sum_of(cosine):
    return lambda rows, columns: jnp.sum(cosine(rows[:, None] + columns[None, :]), axis=1)
