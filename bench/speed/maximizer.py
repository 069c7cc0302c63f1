"""How often the maximizer finds the maximum of a sampled function, with its defaults.

A maximum is found if the value is no more than `CLOSE` standard deviations of the function below the
truth: the best of a dense grid, if a grid is possible, and of refining from very many starts. Prior
draws are the hardest: nothing is known, and every maximum is as good as any. Rounds maximize posterior
samples.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench import claims
from bench.common.timing import Figure
from jaxbo.domains.base import Cube
from jaxbo.kernels.choosing.maximize import ascend, maximize
from jaxbo.kernels.linalg import dot
from jaxbo.kernels.processes import features, posterior
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.kernels.processes.features import FeatureMap, FourierFunction
from jaxbo.types import Key, Points, Scalar

#: The defaults of the methods.
SIZE, CANDIDATES, NOISE = 100, 1000, 1e-2
#: Below the truth by this share of the function's standard deviation counts as found.
CLOSE = 1e-3
#: For the truth, by dimension: points of the grid along an axis, and starts of many candidates.
GRID = {1: 20001, 2: 401, 3: 65}
STARTS = {1: 16, 2: 32, 3: 64, 6: 200}
MANY, STEPS = 40_000, 10
#: Functions whose truth is looked for at the same time: a few hundred megabytes.
BATCH = 25


class FunctionSetting(NamedTuple):
    """Functions of `dim` coordinates; after `points` observations, or prior draws without."""

    dim: int
    scale: float
    points: int

    def name(self) -> str:
        kind = f"sample after {self.points} points" if self.points else "prior draw"
        return f"maximum of a {kind}, D={self.dim} l={self.scale:g}"


# In six dimensions 0.2 is rougher than any 1000 evaluations could learn.
SETTINGS = tuple(
    FunctionSetting(dim, 0.5 if dim == 6 else 0.2, points)
    for points in (0, 30)
    for dim in (1, 2, 3, 6)
)


class FoundMaximum(NamedTuple):
    """The results for a function: the value found, the truth, and the standard deviation over the
    domain.
    """

    found: Scalar
    truth: Scalar
    spread: Scalar


def figures(key: Key, runs: int) -> list[Figure]:
    """Success rate and mean loss where it is missed, over `runs` functions of each kind."""
    return [
        figure
        for i, setting in enumerate(SETTINGS)
        for figure in _figures(setting, outcomes(jr.fold_in(key, i), setting, runs))
    ]


def _figures(setting: FunctionSetting, result: FoundMaximum) -> list[Figure]:
    loss = np.asarray((result.truth - result.found) / result.spread, np.float64)
    missed = loss > CLOSE
    rate = 100 * float(np.mean(~missed))
    where_missed = float(np.mean(loss[missed])) if missed.any() else 0.0
    name = setting.name()
    return [
        Figure(
            name, rate, "% found", goal=">= 99", values=tuple(100.0 * ~missed), sample=claims.SHARE
        ),
        Figure(
            f"{name}, loss where missed", where_missed, "standard deviations", values=tuple(loss)
        ),
    ]


@partial(jax.jit, static_argnums=(1, 2))
def outcomes(key: Key, setting: FunctionSetting, runs: int) -> FoundMaximum:
    """An outcome for each of `runs` functions that share their features and candidates."""
    map_key, data_key, candidate_key, truth_key = jr.split(key, 4)
    domain = Cube(setting.dim)
    phi = features.sine_cosine(map_key, SquaredExponential(setting.scale), setting.dim, SIZE)
    weights = jax.vmap(lambda k: _weights(k, phi, setting))(jr.split(data_key, runs))
    candidates, many = (
        domain.candidates(candidate_key, CANDIDATES),
        domain.candidates(truth_key, MANY),
    )
    dense = _grid(setting.dim)

    def outcome(w: Float[Array, " features"]) -> FoundMaximum:
        f = FourierFunction(phi, w)
        found = maximize(f, domain, candidates)[1]
        truth = jnp.maximum(found, _best_refined(f, domain, many, STARTS[setting.dim]))
        return FoundMaximum(found, truth, jnp.std(jax.vmap(f)(candidates)))

    result = jax.lax.map(outcome, weights, batch_size=BATCH)
    if dense is None:
        return result
    return result._replace(truth=jnp.maximum(result.truth, _best_on(dense, phi, weights)))


def _weights(key: Key, phi: FeatureMap, setting: FunctionSetting) -> Float[Array, " features"]:
    """The weights of a prior draw, or of a posterior sample after noisy observations of another draw."""
    prior_key, point_key, noise_key, sample_key = jr.split(key, 4)
    w = jr.normal(prior_key, (SIZE,))
    if not setting.points:
        return w
    phis = jax.vmap(phi)(jr.uniform(point_key, (setting.points, setting.dim)))
    ys = dot(phis, w) + NOISE**0.5 * jr.normal(noise_key, (setting.points,))
    told = posterior.condition_all(posterior.prior(SIZE, NOISE), phis, ys)
    return posterior.sample(sample_key, told)


def _best_refined(f: FourierFunction, domain: Cube, candidates: Points, starts: int) -> Scalar:
    """The best of each share of the candidates, all of them refined to the end."""
    shares = candidates[: len(candidates) // starts * starts].reshape(starts, -1, domain.dim)

    def refined(share: Points) -> Scalar:
        values = jax.vmap(f)(share)
        best = jnp.argmax(values)
        return ascend(f, domain, share[best], values[best], STEPS)[1]

    return jnp.max(jax.vmap(refined)(shares))


def _grid(dim: int) -> np.ndarray | None:
    if dim not in GRID:
        return None
    axis = np.linspace(0, 1, GRID[dim])
    return np.stack(np.meshgrid(*[axis] * dim), axis=-1).reshape(-1, dim)


def _best_on(
    points: np.ndarray, phi: FeatureMap, weights: Float[Array, "runs features"]
) -> Float[Array, " runs"]:
    """The largest value of every function on the points, a slice at a time."""
    slices = jnp.asarray(points, float)

    def best(best: Float[Array, " runs"], x: Float[Array, "slice dim"]):
        values = dot(weights, jax.vmap(phi)(x).T)
        return jnp.maximum(best, jnp.max(values, axis=1)), None

    width = 5000
    padded = jnp.concatenate([slices, jnp.repeat(slices[-1:], -len(slices) % width, axis=0)])
    start = jnp.full((weights.shape[0],), -jnp.inf, weights.dtype)
    return jax.lax.scan(best, start, padded.reshape(-1, width, points.shape[1]))[0]
