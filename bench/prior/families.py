"""Functions that agents have in common, more or less: draws of a common process, SE(0.2) on the square.

alike        0.9 common + 0.1 own
half         0.5 common + 0.5 own
opposed      0.8 common + 0.2 own, upside down for every other agent
unrelated    own
clusters     0.8 common + 0.2 own, with a common part of its own for every third agent
shifted      common, and moved by a vector of one's own whose coordinates have a deviation of 0.1
"""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float

from bench.claims import Check
from bench.common.panels import figure
from bench.common.text import interval
from bench.prior.setting import AFTER, INITIAL, KERNEL
from bench.runner import Result
from jaxbo._keys import aside
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.kernels.linalg import dot
from jaxbo.kernels.processes import features
from jaxbo.kernels.processes.features import SineCosine
from jaxbo.runs.compiled import run
from jaxbo.types import Count, Key, Point, Scalar

#: So many features draw the functions, many more than a method has.
DRAWN = 600
#: Family -> share in common, share of one's own, and kinds of agents. Of two kinds one is upside down.
FAMILIES = {
    "alike": (0.9, 0.1, 1),
    "half": (0.5, 0.5, 1),
    "opposed": (0.8, 0.2, 2),
    "unrelated": (0.0, 1.0, 1),
}
#: The deviation of the place of an agent's 0, in its units.
AWAY = 3.0
#: Most kinds.
KINDS = 3
CLUSTERS = (0.8, 0.2, KINDS)
#: The last is the deviation of a shift.
SHIFTED = (1.0, 0.0, 1, 0.1)


def weights(
    key: Key, family: Float[Array, " numbers"], agents: int
) -> Float[Array, "agents features"]:
    """The functions of so many agents of a family, on `DRAWN` features."""
    common_key, own_key = jr.split(key)
    share, rest, kinds, *shift = family
    common = jr.normal(common_key, (KINDS, DRAWN))
    turned = jnp.asarray([1.0, -1.0, 0.0])[:, None] * common[:1]
    common = jnp.where(kinds == 2, turned, common)[jnp.arange(agents) % kinds.astype(int)]
    if shift:
        return jax.vmap(moved)(share * common, shift[0] * jr.normal(own_key, (agents, 2)))
    return share * common + rest * jr.normal(own_key, (agents, DRAWN))


def moved(w: Float[Array, " features"], by: Point) -> Float[Array, " features"]:
    """The weights of f(x - by), where w are those of f."""
    at_sines, at_cosines = jnp.split(w, 2)
    phi = drawn_on()
    scale = jnp.sqrt(phi.variance / at_sines.size)
    sines, cosines = (part / scale for part in phi.parts(by))
    turned = at_sines * cosines + at_cosines * sines, at_cosines * cosines - at_sines * sines
    return jnp.concatenate(turned)


def signs(family: Float[Array, "3"], agents: int) -> Float[Array, " agents"]:
    """-1 for agents whose functions are upside down, 1 for others; of agents of one or two kinds."""
    odd = jnp.arange(agents) % 2 == 1
    return jnp.where(odd & (family[2] == 2), -1.0, 1.0)


def drawn_on() -> SineCosine:
    """The features of all functions."""
    return features.sine_cosine(jr.key(0), KERNEL, 2, DRAWN)


def regret(
    algorithm: AbstractAlgorithm,
    agents: int,
    rounds: int,
    key: Key,
    family: Float[Array, " numbers"],
    present: Bool[Array, "rounds agents"] | None = None,
    units: bool = False,
) -> Float[Array, " evaluations"]:
    """The mean regret of a run's agents, in deviations of their functions.

    `present` says whose messages arrive in a round. None: all do. With `units` each agent's values
    have a unit of their own. The logarithm of its size has a deviation of 1, and the place of its 0 has
    one of `AWAY` units.
    """
    phi = drawn_on()
    axis = (np.arange(60) + 0.5) / 60
    grid = jnp.asarray(np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2), float)
    weights_key, run_key = jr.split(key)
    w = weights(weights_key, family, agents)
    size, zero = jnp.ones((agents,)), jnp.zeros((agents,))
    if units:
        size_key, zero_key = jr.split(aside(key))
        size = jnp.exp(jr.normal(size_key, (agents,)))
        zero = AWAY * size * jr.normal(zero_key, (agents,))

    def objective(key: Key, agent: Count, x: Point) -> Scalar:
        del key
        value = dot(phi(x), w[agent])
        return zero[agent] + size[agent] * value if units else value

    _, trace = run(algorithm, objective, rounds, run_key, initial=INITIAL, present=present)
    values = dot(jax.vmap(phi)(grid), w.T)
    found = (trace.values - zero[None]) / size[None] if units else trace.values
    best = jax.lax.cummax(found, axis=0)
    below = jnp.maximum(jnp.max(values, axis=0)[None, :] - best, 0)
    return jnp.mean(below, axis=1) / jnp.std(values)


def result(
    found: dict[tuple[str, str], np.ndarray], checks: dict[str, Check], agents: int
) -> Result:
    """From the regret [runs evaluations] of each family and method."""
    names, methods = (tuple(dict.fromkeys(column)) for column in zip(*found, strict=True))
    curves = {", ".join(kind): one for kind, one in found.items()}
    runs, evaluations = next(iter(found.values())).shape
    after = [n for n in AFTER if n <= evaluations]
    labels = {"xlabel": "evaluations", "ylabel": "regret, deviations"}
    return Result(
        settings={
            "runs": runs,
            "agents": agents,
            "initial": INITIAL,
            "rounds": evaluations - INITIAL,
        },
        curves=curves,
        figure=figure(curves, methods, names, **labels, log=True),
        checks=checks,
        unit="regret, deviations",
        headers=("functions", "method", *(f"after {n}" for n in after)),
        rows=[(*kind, *(interval(one[:, n - 1]) for n in after)) for kind, one in found.items()],
    )
