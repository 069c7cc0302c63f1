"""Agents who want mixtures of the functions that all of them see: the setting of CEPE's experiments, and
their results.

h(x) = Λ(x₁^i, x₂^j), i and j drawn from 1, 2, 3 for each agent;   y = h(x) + N(0, 0.01)
f = α h + (1 - α) mean of all h,   α uniform in [0.1, 0.9];   900 points of the unit square
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from jaxbo import schedules
from jaxbo.algos.base.federated import AbstractFederated
from jaxbo.algos.cepe import CEPE
from jaxbo.domains.base import Finite
from jaxbo.kernels.linalg import dot
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.objectives import functions
from jaxbo.objectives.functions import TestFunction
from jaxbo.runs.compiled import run
from jaxbo.types import Count, Key, Point, Points, Scalar

AGENTS, SIDE, LENGTH_SCALE, NOISE = 50, 30, 0.2, 0.01
POWERS, ALPHAS = (1, 3), (0.1, 0.9)
#: Each with what its values, of all powers, are brought to mean 0 and deviation 1 by.
FUNCTIONS = {
    "Branin": (functions.branin_rescaled, 0.0, 1.0),
    "Sobester": (functions.sobester, 0.0, 1.0),
    "Sobester, standardized": (functions.sobester, 1.87, 5.82),
}
#: Rounds of exploration of the shorter schedule.
SHORT = 64


class Federation(eqx.Module):
    """The functions of the agents of a run, each at all points, and how much they want their own
    alone.
    """

    function: TestFunction
    offset: float
    scale: float
    powers: Float[Array, "agents 2"]
    alpha: Float[Array, " agents"]

    def value(self, powers: Float[Array, "2"], x: Point) -> Scalar:
        """h(x), without noise."""
        return (self.function(x**powers) - self.offset) / self.scale

    def __call__(self, key: Key, agent: Count, x: Point) -> Scalar:
        """A noisy observation."""
        noise = NOISE**0.5 * jr.normal(key, dtype=x.dtype)
        return self.value(self.powers[agent], x) + noise

    def regret(self, queries: Float[Array, "rounds agents 2"]) -> Float[Array, "rounds agents"]:
        """The value of every query, without noise."""
        own = jax.vmap(lambda p: jax.vmap(lambda x: self.value(p, x))(grid()))(self.powers)
        alpha = self.alpha[:, None]
        wanted = alpha * own + (1 - alpha) * jnp.mean(own, axis=0, keepdims=True)
        places = jnp.round(queries * (SIDE - 1)).astype(int)
        at = places[..., 0] * SIDE + places[..., 1]
        got = jnp.take_along_axis(wanted, at.T, axis=1).T
        return jnp.max(wanted, axis=1)[None, :] - got


def grid() -> Points:
    """900 points, evenly spaced."""
    side = jnp.linspace(0, 1, SIDE)
    return jnp.stack(jnp.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)


def federation(key: Key, name: str, agents: int = AGENTS) -> Federation:
    """The functions drawn for a run."""
    power_key, alpha_key = jr.split(key)
    powers = jr.randint(power_key, (agents, 2), POWERS[0], POWERS[1] + 1).astype(float)
    alpha = jr.uniform(alpha_key, (agents,), minval=ALPHAS[0], maxval=ALPHAS[1])
    function, offset, scale = FUNCTIONS[name]
    return Federation(function(), offset, scale, powers, alpha)


def cepe(numbers: np.ndarray, agents: int = AGENTS, **options: Any) -> CEPE:
    """The paper's setting."""
    options = {"kernel": SquaredExponential(LENGTH_SCALE), "noise": NOISE} | options
    return CEPE(Finite(grid()), agents, numbers, **options)


def shorter(rounds: int) -> np.ndarray:
    """N_t with N_T = `SHORT`, interleaved as in the longer run."""
    return schedules.growing(rounds, scale=min(SHORT / rounds ** (2 / 3), 1.0))


class Totals(NamedTuple):
    """The regret of all agents in every round, and the numbers that they sent."""

    regret: Float[Array, "*runs rounds"]
    scalars: Float[Array, "*runs rounds"]


@eqx.filter_jit
def outcomes(
    algorithm: AbstractFederated,
    alpha: Scalar,
    name: str,
    rounds: int,
    keys: Array,
) -> Totals:
    """A run for each key, in turn: memory is that of a single run."""

    def one(key: Key) -> Totals:
        draw_key, run_key = jr.split(key)
        drawn = federation(draw_key, name, algorithm.agents)
        wanted = jnp.where(jnp.isnan(alpha), drawn.alpha, alpha)
        method = eqx.tree_at(lambda a: a.alpha, algorithm, wanted)
        _, trace = run(method, drawn, rounds, run_key)
        info = trace.info.agents if method.remembers else trace.info
        regret = drawn.regret(trace.queries)
        ones = jnp.ones(regret.shape[1], regret.dtype)
        return Totals(dot(regret, ones), jnp.sum(info.scalars, axis=1).astype(regret.dtype))

    return jax.lax.map(one, keys)


def cumulative(regret: Array | np.ndarray) -> Float[np.ndarray, "runs rounds"]:
    """Summed up in float64."""
    return np.cumsum(np.asarray(regret, np.float64), axis=-1)


def settings(runs: int, rounds: int) -> dict[str, Any]:
    """The common parts of all experiments of the paper."""
    return {
        "runs": runs,
        "rounds": rounds,
        "agents": AGENTS,
        "points of the domain": SIDE**2,
        "length scale": LENGTH_SCALE,
        "noise variance": NOISE,
        "alpha": f"uniform in {list(ALPHAS)}",
    }
