"""The cost of a population's checkpoint: `run(checkpoint=)` beside the same run without a file.

Each size is a process of its own, `python -m bench.speed.saving AGENTS`: FTS, every agent a target,
`ROUNDS` rounds with the objective inside. Its state is saved between segments, and at the end.
"""

import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from bench.claims import Check, met
from bench.common.timing import elsewhere
from bench.runner import Experiment, Options, Result, progress
from jaxbo.algos.fts import FTS
from jaxbo.domains.base import Cube
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.runs.compiled import run
from jaxbo.runs.trace import summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AGENTS = 10_000, 100_000, 1_000_000
ROUNDS, FEATURES, CANDIDATES = 10, 50, 100
#: Times that a run with a checkpoint may take of the run without one.
ALLOWED = 1.5


@dataclass(frozen=True)
class Saved:
    """Seconds of all rounds without a file, with it, and of reading them from it; its bytes."""

    bare: float
    kept: float
    again: float
    size: int
    same: bool


def measured(agents: int, rounds: int = ROUNDS) -> Saved:
    """One size in this process, after a run that compiles."""
    features = Fixed(size=FEATURES, noise=1e-2, capacity=rounds)
    method = FTS(Cube(2), agents, features=features, candidates=CANDIDATES)
    optima = jr.uniform(jr.key(1), (agents, 2), minval=0.4, maxval=0.6)

    def objective(key: Any, agent: Any, x: Any) -> Any:
        return -jnp.sum((x - optima[agent]) ** 2) + 0.01 * jr.normal(key)

    whole = partial(run, method, objective, rounds, jr.key(0), record=summary)
    bare = jax.jit(lambda: whole()[1])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "population.npz")
        kept = lambda: whole(checkpoint=path)[1]  # noqa: E731
        times, traces = [], []
        for call, begin in ((bare, True), (bare, False), (kept, True), (kept, True), (kept, False)):
            if begin:
                path.unlink(missing_ok=True)
            began = time.perf_counter()
            traces.append(jax.block_until_ready(call()))
            times.append(time.perf_counter() - began)
        size = path.stat().st_size
    leaves = [np.asarray(trace.mean) for trace in traces]
    same = all(np.allclose(leaves[0], leaf, rtol=1e-4) for leaf in leaves)
    return Saved(times[1], times[3], times[4], size, same)


def _run(options: Options) -> Result:
    rounds = options.rounds_or(full=ROUNDS, quick=3)
    sizes = (1000,) if options.quick else AGENTS
    found = {
        agents: Saved(**elsewhere("bench.speed.saving", str(agents), str(rounds)))
        for agents in progress(sizes, "saving")
    }
    return Result(
        {
            "rounds": rounds,
            "features": FEATURES,
            "device of the measurements": jax.devices()[0].device_kind,
            "cases": [{"agents": agents} | asdict(one) for agents, one in found.items()],
        },
        finals={_name(agents): np.asarray([one.kept]) for agents, one in found.items()},
        checks=checks(found),
        headers=HEADERS,
        rows=[_cells(agents, one) for agents, one in found.items()],
        figure=picture(found),
    )


def checks(found: dict[int, Saved]) -> dict[str, Check]:
    """A file adds at most half of the time, and changes no result."""
    return {
        f"{_name(agents)}: at most {ALLOWED:g} times the run without a file": met(
            one.kept / one.bare, most=ALLOWED
        )
        for agents, one in found.items()
    } | {
        f"{_name(agents)}: the same with and without a file, and read again": met(
            float(one.same), least=1.0
        )
        for agents, one in found.items()
    }


HEADERS = ("case", "run, s", "with a checkpoint, s", "read again, s", "file, MB", "bytes an agent")


def _cells(agents: int, one: Saved) -> tuple[str, ...]:
    return (
        _name(agents),
        f"{one.bare:.3g}",
        f"{one.kept:.3g}",
        f"{one.again:.3g}",
        f"{one.size / 1e6:.3g}",
        f"{one.size / agents:.0f}",
    )


def _name(agents: int) -> str:
    return f"{agents} agents"


def picture(found: dict[int, Saved]) -> "Figure":
    """Seconds by agents: the run, the run with a file, reading the file."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(4.5, 3.6), layout="constrained")
    lines = {"with a checkpoint": "kept", "without": "bare", "read again": "again"}
    for (label, name), color in zip(lines.items(), ("C1", "C0", "C2"), strict=True):
        seconds = [getattr(one, name) for one in found.values()]
        axes.plot(list(found), seconds, "o-", color=color, label=label)
    axes.set(xscale="log", yscale="log", xlabel="agents", ylabel=f"seconds of {ROUNDS} rounds")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    return figure


EXPERIMENT = Experiment(
    source="no paper; beside the same run without a file",
    about="what a checkpoint of a population costs, up to a million agents",
    time="15 min",
    run=_run,
)


if __name__ == "__main__":
    print(json.dumps(asdict(measured(*map(int, sys.argv[1:])))))
