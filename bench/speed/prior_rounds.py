"""Rounds of the learned prior beside rounds of FTS, in the same process.

All agents are halfway through, as in `round_parts`, and ask: they make messages, a broadcast and
queries. With expected improvement a query takes the variance at all candidates, under the learned
prior and under nothing learned. With Thompson sampling it takes a sample, as FTS does.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from bench.claims import met
from bench.common.timing import race
from bench.runner import Experiment, Options, Result
from bench.speed.rounds import CANDIDATES, DIM, NOISE, SCALE, SIZE
from jaxbo.algos.base.federated import AbstractFederated
from jaxbo.algos.fts import FTS
from jaxbo.algos.learned_prior import LearnedPrior
from jaxbo.domains.base import Cube
from jaxbo.kernels.choosing.policy import EI, AbstractPolicy, Thompson
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import SquaredExponential

AGENTS, ROUNDS = 200, 20
#: Form of S -> its rank, and how many times FTS's time a round may take.
FORMS = {"any covariance": (None, 3.0), "rank 10": (10, 1.5)}
POLICIES: dict[str, AbstractPolicy] = {"EI": EI(), "Thompson": Thompson()}


def methods(agents: int, size: int = SIZE, candidates: int = CANDIDATES) -> dict[str, Any]:
    """Methods on the same features, by name; FTS first."""
    domain, kernel = Cube(DIM), SquaredExponential(SCALE)
    features = Fixed(kernel, size, NOISE, capacity=ROUNDS)
    found: dict[str, Any] = {"FTS": FTS(domain, agents, features=features, candidates=candidates)}
    for form, (rank, _) in FORMS.items():
        for name, policy in POLICIES.items():
            options = {"features": Fixed(kernel, size, NOISE), "rank": rank, "policy": policy}
            found[f"{form}, {name}"] = LearnedPrior(
                domain, agents, ROUNDS, candidates=candidates, **options
            )
    return found


def asking(method: AbstractFederated) -> Callable[[], Any]:
    """A call that asks all agents, halfway through."""
    half = ROUNDS // 2
    points = jr.uniform(jr.key(1), (half, method.agents, DIM))
    values = -jnp.sum((points - 0.5) ** 2, axis=-1)
    state = eqx.filter_jit(method.init)(jr.key(0))
    state = eqx.filter_jit(method.warm_start)(state, points, values)
    _, info = eqx.filter_jit(method.ask)(jr.key(2), state)
    if method.remembers:
        shared = method.revised(state.shared, info.broadcast)
        state = eqx.tree_at(lambda s: s.shared, state, shared)
    ask = jax.jit(lambda state: method.ask(jr.key(3), state)[0])
    return partial(ask, state)


def measured(methods: dict[str, Any], repeats: int) -> dict[str, np.ndarray]:
    """Microseconds an agent and round, of each repeat."""
    seconds = race({name: asking(method) for name, method in methods.items()}, repeats)
    return {name: 1e6 * s / methods[name].agents for name, s in seconds.items()}


def _run(options: Options) -> Result:
    """A case; --runs is how often each round is timed."""
    agents = 20 if options.quick else AGENTS
    took = measured(methods(agents), options.runs_or(full=20, quick=2))
    best = {name: float(times.min()) for name, times in took.items()}
    ratio = {name: time / best["FTS"] for name, time in best.items()}
    return Result(
        {"agents": agents, "observations": ROUNDS // 2, "features": SIZE, "candidates": CANDIDATES},
        finals={name: np.asarray([time]) for name, time in best.items()},
        checks={
            f"{form}, {policy}: at most {most:g} times a round of FTS": met(
                ratio[f"{form}, {policy}"], most=most
            )
            for form, (_, most) in FORMS.items()
            for policy in POLICIES
        },
        unit="microseconds an agent and round",
        headers=("method", "µs an agent", "x FTS"),
        rows=[(name, f"{best[name]:.1f}", f"{ratio[name]:.2f}") for name in best],
    )


EXPERIMENT = Experiment(
    source="no paper; rounds of FTS in the same process",
    about="how long a round of the learned prior takes, beside a round of FTS",
    time="10 min",
    run=_run,
)
