"""The parts of the time of an FTS round: each beside the least work of any program.

    floor of a part = bytes / bandwidth or operations / rate + its random numbers + its cosines

A federation halfway through, as in `scaling`. Bytes and operations are counted as in `floor`; of the
two the slower counts for a part. Random numbers and cosines are measured: a program that does nothing
else. `message` draws from the posterior of every agent, `candidates` finds the best candidate of every
slab, `search` goes on from there, `learn` updates the posterior. `rest` is what else a query takes: the
message of a peer, what failed or was asked before, and points of a search that is told nothing. The
possible gain of a kernel of our own is the time of a part beyond its floor.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from bench.claims import met
from bench.common.timing import bandwidth, compiled, race
from bench.runner import Experiment, Options, Result
from bench.speed import floor
from bench.speed.floor import CANDIDATES, Case
from jaxbo.algos.fts import FTS
from jaxbo.kernels.choosing import maximize
from jaxbo.kernels.choosing.blocks import of_all
from jaxbo.kernels.processes.features import FourierFunction, cos_turns
from jaxbo.types import Key

#: Times of its floor from which on a kernel of our own would be worth it.
WORTH = 2.0


class RoundPart(NamedTuple):
    """Microseconds an agent: measured, and the floor's summands; `work` is bytes or operations."""

    took: float
    work: float
    random: float
    cosines: float

    @property
    def floor(self) -> float:
        return self.work + self.random + self.cosines


def measured(case: Case, repeats: int) -> dict[str, RoundPart]:
    """The parts of a round of this case, halfway through."""
    method = floor.algorithm(case)
    assert isinstance(method, FTS)
    points = jr.uniform(jr.key(1), (case.rounds, case.agents, case.dim))
    values = -jnp.sum((points - 0.5) ** 2, axis=-1)

    def learn(points: Any, values: Any) -> Any:
        """All rounds, over the state as in `run`: halfway through on average."""
        state = method.init(jr.key(0))
        return jax.lax.fori_loop(
            0, case.rounds, lambda t, s: method.tell(s, points[t], values[t]), state
        )

    half = case.rounds // 2
    state = jax.jit(learn)(points.at[half:].set(jnp.nan), values.at[half:].set(jnp.nan))
    messages = eqx.filter_jit(method.messages)(jr.key(2), state)
    basis = state.shared.message
    spread = method.domain.candidates(jr.key(3), CANDIDATES)

    def functions(weights: Any) -> FourierFunction:
        return FourierFunction(basis, weights)

    def best(weights: Any) -> Any:
        """The best point of each slab, as `maximize` begins."""
        found: Any = of_all(functions(weights), spread)
        first = maximize._best_of_shares(found, maximize.default_starts(case.dim))
        return spread[first], found[first]

    def search(weights: Any) -> Any:
        return maximize.maximize(functions(weights), method.domain, spread)

    # A cosine or a sine for each feature.
    phases = jr.uniform(jr.key(4), (case.agents, floor.visited(case) * case.features))
    programs: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "message": (lambda key, state: method.messages(key, state), (jr.key(2), state)),
        "candidates": (jax.vmap(best), (messages.weights,)),
        "candidates and search": (jax.vmap(search), (messages.weights,)),
        "ask": (lambda key, state: method.ask(key, state), (jr.key(6), state)),
        "learn": (learn, (points, values)),
        "random numbers": (partial(_normals, case), (jr.key(5),)),
        "cosines": (lambda phases: jnp.sum(cos_turns(phases), axis=1), (phases,)),
    }
    took = _each(programs, case, repeats)
    read, fastest = bandwidth(20), floor.rate(case)
    once = 1e6 * floor.moved(case) / 2 / read
    products = 1e6 * floor.at_candidates(case) / fastest
    climbing = 1e6 * floor.in_search(case) / fastest
    return {
        "message": RoundPart(took["message"], once, took["random numbers"], 0.0),
        "candidates": RoundPart(took["candidates"], products, 0.0, 0.0),
        "search": RoundPart(
            took["candidates and search"] - took["candidates"], climbing, 0.0, took["cosines"]
        ),
        "rest": RoundPart(
            took["ask"] - took["message"] - took["candidates and search"], 0.0, 0.0, 0.0
        ),
        "learn": RoundPart(took["learn"] / case.rounds, once, 0.0, 0.0),
    }


def whole(parts: Mapping[str, RoundPart]) -> RoundPart:
    """A round, and its floor."""
    return RoundPart(*(sum(numbers) for numbers in zip(*parts.values(), strict=True)))


def _normals(case: Case, key: Key) -> Any:
    """A standard normal number for each feature of each agent, with keys of their own."""
    keys = jax.vmap(lambda n: jr.fold_in(key, n))(jnp.arange(case.agents))
    return jax.vmap(lambda key: jr.normal(key, (case.features,)))(keys)


def _each(
    programs: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]], case: Case, repeats: int
) -> dict[str, float]:
    """Microseconds an agent, the fastest of all repeats."""
    calls = {
        name: partial(compiled(program, *arguments)[0], *arguments)
        for name, (program, arguments) in programs.items()
    }
    return {name: 1e6 * s.min() / case.agents for name, s in race(calls, repeats).items()}


def _run(options: Options) -> Result:
    """A case; --runs is how often each part is timed."""
    case = Case(agents=100) if options.quick else Case()
    parts = measured(case, options.runs_or(full=20, quick=2))
    return Result(
        {
            "agents": case.agents,
            "observations": case.rounds // 2,
            "candidates": CANDIDATES,
            "parts": {name: part._asdict() | {"floor": part.floor} for name, part in parts.items()},
        },
        finals={name: np.asarray([part.took]) for name, part in parts.items()},
        checks={
            f"{name}: less than {WORTH:g} times its floor": met(part.took / part.floor, most=WORTH)
            for name, part in [*parts.items(), ("the whole round", whole(parts))]
            if part.floor
        },
        headers=(
            "part",
            "µs an agent",
            "bytes or products",
            "random numbers",
            "cosines",
            "x floor",
        ),
        rows=[
            (
                name,
                *(f"{n:.2f}" for n in part),
                f"{part.took / part.floor:.2f}" if part.floor else "",
            )
            for name, part in parts.items()
        ],
    )


EXPERIMENT = Experiment(
    source="no paper; beside what no other program could do without",
    about="where the time of an FTS round goes",
    time="10 s",
    run=_run,
)
