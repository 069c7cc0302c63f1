"""The price of privacy in time: rounds of DP-FTS-DE beside FTS's, and the sum beside reading its terms.

200 agents, M = 50, P = 4, two dimensions, 1000 candidates, 40 rounds: seeds x settings of z and q, all in
one program.
"""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from bench.common.timing import Figure, compiled, race
from bench.speed.rounds import NOISE, SCALE, SHIFT, UNIT
from jaxbo.algos.base.federated import AbstractFederated
from jaxbo.algos.dp_fts_de import DPFTSDE
from jaxbo.algos.fts import FTS
from jaxbo.domains.base import Cube, Regions
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.objectives.families import Shifted
from jaxbo.objectives.functions import branin
from jaxbo.privacy.mechanism import Mechanism, Poisson
from jaxbo.runs.compiled import run
from jaxbo.types import Key, Scalar

AGENTS, ROUNDS, SIZE, REGIONS = 200, 40, 50, 4
#: Runs that are computed at the same time.
BATCH = 5
#: Every z with every q.
SETTINGS = np.array(list(itertools.product((1.0, 1.5, 2.0, 3.0, 4.0), (0.15, 0.35))))
#: How long a round may take, in FTS's.
GOAL = 1.3
#: Messages of the sum that is measured by itself.
MESSAGES, NUMBERS = 200_000, 100


def figures(key: Key, seeds: int, repeats: int) -> list[Figure]:
    """The figures of the whole curve; `seeds` runs a setting."""
    few = jr.split(key, 2)
    objective = Shifted(
        function=branin(), shifts=jr.uniform(key, (AGENTS, 2), minval=-SHIFT, maxval=SHIFT)
    )

    def curve(keys: Array, settings: Array, private: bool) -> Array:
        pairs = jnp.repeat(settings, len(keys), axis=0), jnp.tile(keys, len(settings))

        def one(item: tuple[Array, Key]) -> Scalar:
            method = algorithm(*item[0]) if private else reference()
            return jnp.mean(run(method, objective, ROUNDS, item[1])[1].values)

        return jax.lax.map(one, pairs, batch_size=BATCH)

    settings = jnp.asarray(SETTINGS, float)
    ours, _ = compiled(lambda k, s: curve(k, s, True), few, settings)
    theirs, _ = compiled(lambda k, s: curve(k, s, False), few, settings)
    calls = {"ours": lambda: ours(few, settings), "FTS": lambda: theirs(few, settings)}
    work = AGENTS * ROUNDS * len(SETTINGS)
    each = {name: 1e6 * s / (work * len(few)) for name, s in race(calls, repeats).items()}
    times = float(np.min(each["ours"]) / np.min(each["FTS"]))
    keys = jr.split(key, seeds)
    whole, seconds = compiled(lambda k, s: curve(k, s, True), keys, settings)
    total = float(race({"all": lambda: whole(keys, settings)}, 1)["all"][0])
    name = f"DP-FTS-DE, {AGENTS} agents, M = {SIZE}, P = {REGIONS}"
    runs = f"{seeds} seeds x {len(SETTINGS)} settings of it in one program"
    return [
        Figure(name, float(np.min(each["ours"])), UNIT, values=tuple(each["ours"])),
        Figure(f"{name}: time in rounds of FTS", times, "FTS rounds", goal=f"<= {GOAL:g}"),
        Figure(f"{runs}: compilation", seconds, "s"),
        Figure(runs, total, "s"),
        Figure(f"{runs}, a round of an agent", 1e6 * total / (work * seeds), UNIT),
        *_sum(key, repeats),
    ]


def algorithm(z: Scalar, q: Scalar) -> DPFTSDE:
    """What is measured."""
    mechanism = Mechanism(z, 11.0, Poisson(q))
    regions = Regions.of(2, REGIONS)
    sums = {"regions": regions, "releases": jnp.inf}
    return DPFTSDE(Cube(2), AGENTS, mechanism, features=_features(), **sums)


def reference() -> AbstractFederated:
    """The program that it is measured beside."""
    return FTS(Cube(2), AGENTS, features=_features())


def _features() -> Fixed:
    return Fixed(kernel=SquaredExponential(SCALE), size=SIZE, noise=NOISE, capacity=ROUNDS)


def _sum(key: Key, repeats: int) -> list[Figure]:
    """A release of very many messages; the floor is to read them once."""
    messages = jr.normal(key, (MESSAGES, NUMBERS))
    weights = jnp.full((REGIONS, MESSAGES), 1 / MESSAGES)
    present = jnp.ones((MESSAGES,), bool)
    mechanism = Mechanism(1.0, 11.0, Poisson(0.25))
    release = eqx.filter_jit(mechanism.release)
    product = jax.jit(jnp.matmul)
    calls = {
        "release": lambda: release(key, messages, weights, present),
        "floor": lambda: product(weights, messages),
    }
    seconds = {name: 1e3 * float(np.min(s)) for name, s in race(calls, repeats).items()}
    ratio = seconds["floor"] / seconds["release"]
    name = f"a release of {MESSAGES} messages of {NUMBERS} numbers"
    beside = "the weighted sum alone, which reads them once"
    return [Figure(name, seconds["release"], "ms", beside=beside, ratio=ratio)]
