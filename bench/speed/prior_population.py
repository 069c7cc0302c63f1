"""A hundred thousand agents that learn a prior together, in one program on one machine.

All rounds are one program with the objective inside. Messages of a chunk of agents are summed up before
the next chunk makes its own. Agents differ most in ten directions, and query by a sample of their
posteriors. By expected improvement a round takes far longer (`prior_rounds`).
"""

import time
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.common.timing import compiled, held
from bench.runner import Experiment, Options, Result
from bench.speed.rounds import CANDIDATES, DIM, NOISE, SCALE, SIZE
from jaxbo import metrics
from jaxbo.algos.learned_prior import LearnedPrior
from jaxbo.domains.base import Cube
from jaxbo.kernels.choosing.policy import Thompson
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.runs.compiled import run
from jaxbo.runs.trace import Summary, summary
from jaxbo.types import Key

AGENTS, ROUNDS, RANK, CHUNK = 100_000, 40, 10, 2000


@dataclass(frozen=True)
class Population:
    """Seconds of compiling and of all rounds, and the processors' seconds of the rounds. Bytes of the
    program's buffers, of the state and of a message. The mean value of the last round's queries.
    """

    agents: int
    rounds: int
    compile: float
    seconds: float
    processors: float
    memory: int
    state: int
    message: int
    last: float


def algorithm(agents: int, rounds: int, size: int, candidates: int) -> LearnedPrior:
    """The method, whose agents keep the observations of all rounds."""
    options = {"features": Fixed(SquaredExponential(SCALE), size, NOISE), "policy": Thompson()}
    return LearnedPrior(
        Cube(DIM), agents, rounds, rank=min(RANK, size), candidates=candidates, **options
    )


def measured(
    agents: int, rounds: int, chunk: int, size: int = SIZE, candidates: int = CANDIDATES
) -> Population:
    """A single run, whose agents have optima of their own around the middle."""
    method = algorithm(agents, rounds, size, candidates)

    def program(key: Key, optima: Float[Array, "agents dim"]) -> Summary:
        def objective(key: Key, agent: Any, x: Any) -> Any:
            return -jnp.sum((x - optima[agent]) ** 2) + 0.01 * jr.normal(key)

        return run(method, objective, rounds, key, record=summary, chunk=chunk)[1]

    optima = jr.uniform(jr.key(1), (agents, DIM), minval=0.4, maxval=0.6)
    whole, compiling = compiled(program, jr.key(0), optima)
    clients = jax.eval_shape(method.init, jr.key(0)).clients
    begun, busy = time.perf_counter(), time.process_time()
    trace = jax.block_until_ready(whole(jr.key(0), optima))
    took, busy = time.perf_counter() - begun, time.process_time() - busy
    sizes = held(whole), metrics.bytes_of(clients), metrics.bytes_of(metrics.message_of(method))
    return Population(agents, rounds, compiling, took, busy, *sizes, float(trace.mean[-1]))


def _run(options: Options) -> Result:
    agents = 1000 if options.quick else AGENTS
    found = measured(agents, options.rounds_or(full=ROUNDS, quick=3), CHUNK)
    return Result(
        {"features": SIZE, "rank": RANK, "candidates": CANDIDATES, "chunk": CHUNK} | asdict(found),
        finals={f"{agents} agents": np.asarray([found.seconds])},
        unit="seconds",
        headers=tuple(asdict(found)),
        rows=[tuple(f"{value:.4g}" for value in asdict(found).values())],
    )


EXPERIMENT = Experiment(
    source="no paper",
    about="a hundred thousand agents that learn a prior together, in 40 rounds",
    time="15 min",
    run=_run,
)
