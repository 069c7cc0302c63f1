"""The observations of a trace or a desk, and a model of them, for pictures."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxbo._check import reals_or_none, require, shown, whole
from jaxbo._direction import Direction, upward
from jaxbo.domains.base import AbstractDomain
from jaxbo.domains.space import Space
from jaxbo.kernels.models.fitted import Exact, Fitted
from jaxbo.kernels.processes.covariance import Matern52
from jaxbo.runs.desk import Desk
from jaxbo.runs.results import Results
from jaxbo.runs.trace import Trace

#: A model is fitted to no more observations than these, the last ones.
MOST = 512


class Observed(NamedTuple):
    """Points and values of an agent, or of all workers who share an objective, in their order."""

    domain: AbstractDomain
    x: Float[np.ndarray, "points dim"]
    y: Float[np.ndarray, " points"]
    feasible: Bool[np.ndarray, " points"]
    direction: Direction = "maximize"

    @property
    def good(self) -> Float[np.ndarray, " points"]:
        """The values; NaN where an outcome missed its bound, as for an evaluation that failed."""
        return np.where(self.feasible, self.y, np.nan)


class Modeled(NamedTuple):
    """A model's mean and standard deviation at points of the domain.

    `ranked` are the points observed, the point with the best mean first.
    """

    predict: Callable[[Float[Array, "points dim"]], tuple[np.ndarray, np.ndarray]]
    mean: Callable[[Array], Array]
    ranked: Float[np.ndarray, "points dim"]


def observed(
    run: Trace | Desk, domain: AbstractDomain | None, agent: int | None = None
) -> Observed:
    """The observations of an agent of a trace, the first by default, or of all workers.

    The workers of a desk share an objective, and so do the columns of a trace of such a method.
    `ValueError` for another thing, for a trace without its domain, and for an agent that there is not.
    """
    if isinstance(run, Desk):
        whole("agent", agent or 0)
        require(not agent, f"agent is for a Trace: the workers of a Desk share one, got {agent}.")
        known = run.results
        arrays = np.asarray(known.queries), known.values, known.feasible
        return Observed(run.algorithm.domain, *arrays, known.direction)
    require(isinstance(run, Trace), f"run must be a Trace or a Desk, got {shown(run)}.")
    require(
        isinstance(domain, AbstractDomain),
        f"a Trace does not know its domain: give domain=, such as algorithm.domain; got "
        f"{shown(domain)}.",
    )
    assert domain is not None
    _must_be_one(run)
    x, y, feasible = map(np.asarray, (run.queries, run.values, run.feasible))
    require(
        x.shape[-1] == domain.dim,
        f"domain has {domain.dim} coordinates, and the points of the trace {x.shape[-1]}: give that of "
        "the run's method.",
    )
    if run.shared and agent is None:
        flat = x.reshape(-1, domain.dim), y.reshape(-1), feasible.reshape(-1)
        return Observed(domain, *flat, run.direction)
    agent, agents = 0 if agent is None else agent, y.shape[1]
    whole("agent", agent)
    require(agent < agents, f"agent must be from 0 to {agents - 1}, got {agent}.")
    return Observed(domain, x[:, agent], y[:, agent], feasible[:, agent], run.direction)


def _must_be_one(run: Trace) -> None:
    shape = np.shape(run.values)
    require(
        len(shape) == 2, f"expected the trace of one run, got values of shape {shape}: take one."
    )


def values_of(run: Any) -> np.ndarray:
    """Values [rounds agents] of a trace, or as they are given. Workers who share an objective are a
    single agent.

    NaN where an outcome missed its bound, as for an evaluation that failed.
    """
    if isinstance(run, Trace):
        _must_be_one(run)
    values, known = run, run.results if isinstance(run, Desk) else run
    if isinstance(known, Trace | Results):
        values = np.where(known.feasible, known.values, np.nan)
    values = reals_or_none("values", values)
    return values.reshape(-1, 1) if values.ndim == 1 or shared(run) else values


def shared(run: Any) -> bool:
    """Whether workers share an objective."""
    return isinstance(run, Desk) or (isinstance(run, Trace) and run.shared)


def direction_of(run: Any) -> Direction:
    """Whether large or small values of a run are good. They are large if values alone are given."""
    return run.direction if isinstance(run, Trace | Desk) else "maximize"


def names_of(domain: AbstractDomain) -> list[str]:
    """A name for each variable."""
    if isinstance(domain, Space):
        return [name for name, _ in domain.parameters]
    return [f"x{below(i + 1)}" for i in range(domain.dim)]


def active(domain: AbstractDomain, x: Float[np.ndarray, "points dim"]) -> np.ndarray:
    """Which variables of each point are active [points variables]."""
    names = names_of(domain)
    if not isinstance(domain, Space):
        return np.ones((len(x), len(names)), bool)
    known = [domain.decode(point) for point in x]
    return np.array([[name in values for name in names] for values in known]).reshape(
        -1, len(names)
    )


def below(number: int) -> str:
    return "".join(chr(0x2080 + int(digit)) for digit in str(number))


def modeled(seen: Observed) -> Modeled:
    """An exact process with hyperparameters of maximum evidence, whatever the method of the run was.

    `ValueError` for fewer than three values.
    """
    fine = np.flatnonzero(np.isfinite(seen.y))[-MOST:]
    require(len(fine) >= 3, f"a model needs at least three values, got {len(fine)}.")
    dim = seen.domain.dim
    kernel = Matern52(jnp.full((dim,), 0.3 * dim**0.5))
    model = Fitted(len(fine), kernel, size=8, inference=Exact(), refit_every=None)
    # In float64, before float32 cuts what is common to all.
    origin, scale = seen.y[fine].mean(), seen.y[fine].std() or 1.0
    shared, belief = _fitted(
        model,
        jnp.asarray(seen.x[fine], float),
        jnp.asarray((seen.y[fine] - origin) / scale, float),
    )

    def predict(x: Float[Array, "points dim"]) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = _predicted(model, shared, belief, jnp.asarray(x, float))
        return np.asarray(mean) * scale + origin, np.sqrt(np.asarray(variance)) * scale

    means, _ = predict(jnp.asarray(seen.x[fine], float))
    mean = lambda x: model.predict(shared, belief, x)[0]  # noqa: E731
    good, means = seen.feasible[fine], upward(seen.direction, means)
    order = np.argsort(-np.where(good | ~good.any(), means, -np.inf), kind="stable")
    return Modeled(predict, mean, seen.x[fine][order])


@eqx.filter_jit
def _fitted(model: Fitted, x: Float[Array, "points dim"], y: Float[Array, " points"]) -> Any:
    shared = model.setup(jr.key(0), x.shape[1])

    def step(belief: Any, row: tuple[Array, Array]) -> tuple[Any, None]:
        return model.condition(shared, belief, *row), None

    belief, _ = jax.lax.scan(step, model.start(shared), (x, y))
    return shared, model.refit(shared, belief)


@eqx.filter_jit
def _predicted(model: Fitted, shared: Any, belief: Any, x: Float[Array, "points dim"]) -> Any:
    return jax.vmap(lambda z: model.predict(shared, belief, z))(x)
