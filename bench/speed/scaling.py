"""How rounds scale: agents, devices, features, dimensions; each beside its machine's floor (`floor`).

Each measurement is a process of its own, `python -m bench.speed.scaling CASE`: FTS and DP-FTS-DE, every
agent a target, all rounds one program with the objective inside, and a `summary` of each round
recorded. Bandwidth, and the rate of a product of matrices, are measured in the same process. Devices of
a CPU are simulated: they share its cores, so that more of them show the price of laying out.
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.random as jr
import numpy as np
from jax.sharding import Mesh

from bench.claims import Check, met
from bench.common.timing import bandwidth, best, compiled, elsewhere, held
from bench.runner import Experiment, Options, Result, progress
from bench.speed import botorch, floor
from bench.speed.floor import CANDIDATES, Case, rate
from jaxbo import metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHUNK = 10_000
#: Times of the floor that a round may take.
ALLOWED = {"cpu": 5.0, "gpu": 3.0}
#: A federation of so many on one accelerator, in so many seconds.
POPULATION, POPULATION_ROUNDS, POPULATION_GOAL = 1_000_000, 60, 20.0
KINDS = ("FTS", "DP-FTS-DE")
#: One agent fewer than devices divide, and how much more memory that may take.
EVEN, UNEVEN = Case(agents=80_000, devices=8), Case(agents=79_999, devices=8)
PADDED = 1.05


@dataclass(frozen=True)
class Measured:
    """Seconds to compile and to run all rounds, and bytes: of the program's buffers and of the state.

    `bandwidth` in bytes and `rate` in operations a second, `floor` in seconds of all rounds on a device.
    """

    compile: float
    seconds: float
    memory: int
    state: int
    bandwidth: float
    rate: float
    floor: float
    device: str
    platform: str


# ---------------------------------------------------------------- one measurement


def measured(case: Case, repeats: int) -> Measured:
    """The case on the devices of this process."""
    method = floor.algorithm(case)
    mesh = None
    if case.devices > 1:
        mesh = Mesh(np.asarray(jax.devices()[: case.devices]), ("agents",))
    rounds, optima = floor.rounds(case, mesh)
    program, compiling = compiled(rounds, jr.key(0), optima)
    clients = jax.eval_shape(method.init, jr.key(0)).clients
    read, fastest = bandwidth(5), rate(case)
    device = jax.devices()[0]
    return Measured(
        compiling,
        best(partial(program, jr.key(0), optima), repeats),
        held(program) * case.devices,
        metrics.bytes_of(clients),
        read,
        fastest,
        floor.seconds(case, read, fastest),
        device.device_kind,
        device.platform,
    )


# ---------------------------------------------------------------- all of them


def cases(quick: bool) -> list[Case]:
    """Agents by method, then devices, features and dimensions."""
    accelerator = jax.default_backend() != "cpu"
    numbers = [100, 1000] if quick else [100, 1000, 10_000, 100_000]
    if accelerator and not quick:
        numbers.append(1_000_000)
    found = [Case(kind, agents) for kind in KINDS for agents in numbers]
    if not quick:
        found += [Case(agents=100_000, chunk=CHUNK)]
    devices = (2,) if quick else (2, 4, 8)
    available = jax.local_device_count() if accelerator else max(devices)
    some = 1000 if quick else 10_000
    found += [
        Case(kind, some, devices=count) for kind in KINDS for count in devices if count <= available
    ]
    found += [Case(features=count) for count in ((50,) if quick else (50, 200, 500, 1000))]
    found += [Case(dim=dim) for dim in ((5,) if quick else (1, 5, 10, 20))]
    if not quick and EVEN.devices <= available:
        found += [EVEN, UNEVEN]
    if accelerator and not quick:
        found.append(Case("DP-FTS-DE", POPULATION, POPULATION_ROUNDS))
    return found


def _run(options: Options) -> Result:
    """All cases; --runs is how often each is timed."""
    repeats = options.runs_or(full=3, quick=1)
    results = [(case, _alone(case, repeats)) for case in progress(cases(options.quick), "scaling")]
    theirs = _botorch()
    return Result(
        {
            "candidates": CANDIDATES,
            "repeats": repeats,
            "device of the measurements": results[0][1].device,
            "BoTorch's microseconds a round": theirs,
            "cases": [asdict(case) | asdict(found) for case, found in results],
        },
        finals={_name(case): np.asarray([_each(case, found)]) for case, found in results},
        checks=checks(results),
        headers=HEADERS,
        rows=[_cells(case, found) for case, found in results],
        figure=picture(results, theirs),
    )


def checks(results: Iterable[tuple[Case, Measured]]) -> dict[str, Check]:
    """On one device not far from the floor, a million agents in seconds, and agents that are padded."""
    found = {}
    memory = {case: one.memory for case, one in results if case in (EVEN, UNEVEN)}
    if len(memory) == 2:
        claim = f"{_name(UNEVEN)}: at most {PADDED:g} times the memory of {EVEN.agents}"
        found[claim] = met(memory[UNEVEN] / memory[EVEN], most=PADDED)
    for case, one in results:
        allowed = ALLOWED.get(one.platform, ALLOWED["gpu"])
        if case.devices == 1:
            claim = f"{_name(case)}: at most {allowed:g} times the floor"
            found[claim] = met(one.seconds / one.floor, most=allowed)
        if case == Case("DP-FTS-DE", POPULATION, POPULATION_ROUNDS):
            found["a million agents in seconds"] = met(one.seconds, most=POPULATION_GOAL)
    return found


def _alone(case: Case, repeats: int) -> Measured:
    """In a process of its own; on a CPU with as many simulated devices as the case asks for."""
    flags = f"--xla_force_host_platform_device_count={case.devices}"
    flags = flags if jax.default_backend() == "cpu" else ""
    arguments = json.dumps(asdict(case)), str(repeats)
    return Measured(**elsewhere("bench.speed.scaling", *arguments, flags=flags))


HEADERS = ("case", "µs an agent and round", "x floor", "compilation, s", "MiB", "bytes an agent")


def _each(case: Case, found: Measured) -> float:
    """Microseconds an agent and round."""
    return 1e6 * found.seconds / (case.agents * case.rounds)


def _cells(case: Case, found: Measured) -> tuple[str, ...]:
    return (
        _name(case),
        f"{_each(case, found):.3g}",
        f"{found.seconds / found.floor:.2f}" if case.devices == 1 else "",
        f"{found.compile:.1f}",
        f"{found.memory / 2**20:.0f}",
        f"{found.memory / case.agents:.0f}",
    )


def _name(case: Case) -> str:
    name = f"{case.kind}, {case.agents} agents"
    if case.rounds != Case.rounds:
        name += f", {case.rounds} rounds"
    if case.devices > 1:
        name += f", {case.devices} devices"
    if case.features != Case.features:
        name += f", {case.features} features"
    if case.dim != Case.dim:
        name += f", {case.dim} dimensions"
    return name + ("" if case.chunk is None else f", in chunks of {case.chunk}")


def _botorch() -> float | None:
    """Microseconds of an agent's round in BoTorch, halfway through, if it is installed."""
    X = np.random.default_rng(0).random((Case.rounds // 2, Case.dim))
    y = -np.sum((X - 0.5) ** 2, axis=1)
    y = (y - y.mean()) / y.std()
    calls = botorch.calls(X, y, 1e-2, 0.2, CANDIDATES, 4, seed=0)
    return None if calls is None else 1e6 * best(calls.round, 3)


# ---------------------------------------------------------------- picture


def picture(results: list[tuple[Case, Measured]], theirs: float | None) -> "Figure":
    """Time an agent and round, by agents, by devices, and by features and dimensions; floors dotted."""
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 4, figsize=(14, 3.8), layout="constrained", sharey=True)

    def line(axes: Any, points: list[tuple[int, Case, Measured]], color: str, label: str) -> None:
        points = sorted(points, key=lambda point: point[0])
        x = [number for number, _, _ in points]
        axes.plot(x, [_each(c, m) for _, c, m in points], "o-", color=color, label=label)
        axes.set(xscale="log", yscale="log")
        axes.set_xticks(x, [f"{number:g}" for number in x])
        axes.minorticks_off()
        if points and points[-1][1].devices == 1:
            floors = [1e6 * m.floor / (c.agents * c.rounds) for _, c, m in points]
            axes.plot(x, floors, ":", color=color)

    for kind, color in zip(KINDS, ("C0", "C1"), strict=True):
        line(
            panels[0],
            [(c.agents, c, m) for c, m in results if c == Case(kind, c.agents)],
            color,
            kind,
        )
        laid = {c.agents for c, _ in results if c.devices > 1} - {EVEN.agents, UNEVEN.agents}
        some = max(laid, default=0)
        line(
            panels[1],
            [(c.devices, c, m) for c, m in results if c == Case(kind, some, devices=c.devices)],
            color,
            f"{kind}, {some} agents",
        )
    line(
        panels[2],
        [(c.features, c, m) for c, m in results if c == Case(features=c.features)],
        "C0",
        f"FTS, {Case.agents} agents",
    )
    line(
        panels[3],
        [(c.dim, c, m) for c, m in results if c == Case(dim=c.dim)],
        "C0",
        f"FTS, {Case.agents} agents",
    )
    if theirs is not None:
        panels[0].axhline(theirs, ls="--", color="0.5", label="BoTorch, one agent")
    for axes, name in zip(panels, ("agents", "devices", "features", "dimensions"), strict=True):
        axes.set_xlabel(name)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    panels[0].set_ylabel("µs an agent and round (dotted: floor)")
    return figure


EXPERIMENT = Experiment(
    source="no paper; beside the machine's own floor, and BoTorch if it is installed",
    about="from a hundred agents to a million, on one device and many",
    time="11 min",
    run=_run,
)


if __name__ == "__main__":
    print(json.dumps(asdict(measured(Case(**json.loads(sys.argv[1])), int(sys.argv[2])))))
