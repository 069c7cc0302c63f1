"""Kernels of our own on a GPU, and whole rounds: beside the plain programs and the device's floor.

    floor = max(bytes / bandwidth, operations / rate), both measured here

Programs for GPUs hold the kernels (`jaxbo.kernels.accelerated`). Here they are switched off for the plain
programs.

Without a GPU the kernels are interpreted, and sizes are small. That shows whether kernels are right, and
nothing about their time. A measurement that fails, or for which no time or memory is left, says so.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from bench.claims import met
from bench.common.timing import HEADERS, Figure, bandwidth, checked, compiled, race
from bench.runner import Experiment, Options, Result, progress
from bench.speed import egp, floor, maxsum
from bench.speed.floor import Case
from jaxbo.domains.base import Cube
from jaxbo.kernels.accelerated import choice
from jaxbo.kernels.choosing import maximize, slabs
from jaxbo.kernels.choosing.blocks import BLOCK
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes import posterior
from jaxbo.kernels.processes.features import FourierFunction
from jaxbo.types import Key

#: Agents whose kernels are timed, and shapes for which they are compared: none divides a tile.
AGENTS, FEATURES, CAPACITY, SLABS = 100_000, 100, 60, 4
ODD = ((70, 37, 150), (3, 100, 1000))
#: Observations of an agent that are timed one after the other, from half of the capacity on.
STEPS = 10
#: Largest error of a kernel, as a share of the largest number. Sums in another order err by less than
#: 1e-5, products of ten bits by more than 1e-3.
CLOSE = 1e-4

SIZES = (1_000, 10_000, 100_000, 1_000_000)
KINDS = ("FTS", "DP-FTS-DE")
#: The plain program is timed for these.
BESIDE = (1_000, 100_000)
#: So many agents of more are computed at the same time.
CHUNK = 100_000
#: A federation of so many, and the seconds in which it is to end.
POPULATION, ROUNDS, GOAL = 1_000_000, 60, 20.0
#: Seconds after which no other measurement begins.
BUDGET = 400.0

PARTS = ("kernels", "population", "rounds", "max-sum", "egp")
#: With --quick, or without a GPU.
QUICK = ("kernels", "population", "rounds", "max-sum")


class Missing(NamedTuple):
    """A measurement that there is not, and why."""

    name: str
    why: str

    def cells(self) -> tuple[str, ...]:
        """A row of the table."""
        return (self.name, self.why, "", "", "", "", "")


class Device(NamedTuple):
    """Bytes and operations a second, and whether there is a GPU for the kernels."""

    read: float
    fastest: float
    gpu: bool

    @property
    def platform(self) -> str:
        """The methods whose programs hold kernels if they are switched on."""
        return "cuda" if self.gpu else "cpu"


@contextlib.contextmanager
def switched(*platforms: str) -> Iterator[None]:
    """Programs that are traced inside hold kernels for the given platforms and for no others."""
    before, choice.PLATFORMS = choice.PLATFORMS, platforms
    jax.clear_caches()
    try:
        yield
    finally:
        choice.PLATFORMS = before
        jax.clear_caches()


# ---------------------------------------------------------------- the kernels


class Task(NamedTuple):
    """The work of a kernel for all agents, and its floor in bytes and operations."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    bytes: float
    operations: float


def tasks(
    key: Key, agents: int, size: int, candidates: int, steps: int
) -> dict[str, Callable[[], Task]]:
    """The search of all slabs, observations by either form of the root, and a draw from a product.

    Each is made when it is wanted, because its arrays are large.
    """
    capacity = min(CAPACITY, size)  # of more the root would be a matrix
    keys = jr.split(key, 4)
    basis = Fixed(size=size + size % 2).setup(keys[0], 2)
    points = Cube(2).candidates(keys[1], candidates)
    each, count = 4.0 * agents * basis.size, capacity / 2

    def search(weights: Array) -> Any:
        f = FourierFunction(basis, weights)
        plain = partial(maximize._best_of_slabs, BLOCK)
        found = slabs.best(plain, f, points, None, SLABS, None)
        return found[1]

    def observed(start: posterior.Posterior, phis: Array) -> posterior.Posterior:
        y = jnp.ones(())
        return jax.lax.fori_loop(0, steps, lambda _, p: posterior.condition(p, phis, y), start)

    def known(capacity: int | None) -> posterior.Posterior:
        """All agents after the first observations."""
        start = posterior.prior(basis.size, 1e-2, capacity=capacity)

        def one(key: Key) -> posterior.Posterior:
            phis = jax.vmap(basis)(jr.uniform(key, (capacity or 2, 2)))
            half = phis[: len(phis) // 2]
            return posterior.condition_all(start, half, jnp.ones(len(half)))

        return eqx.filter_jit(jax.vmap(one))(jr.split(keys[3], agents))

    def new() -> Array:
        return jax.jit(jax.vmap(basis))(jr.uniform(keys[3], (agents, 2)))

    return {
        "the best of every slab": lambda: Task(
            jax.vmap(search),
            (jr.normal(keys[2], (agents, basis.size)),),
            each + 8.0 * agents * SLABS,
            2.0 * agents * basis.size * candidates,
        ),
        f"{steps} observations, the root a matrix": lambda: Task(
            jax.vmap(observed), (known(None), new()), 2 * steps * each * basis.size, 0.0
        ),
        f"{steps} observations, the root a product": lambda: Task(
            jax.vmap(observed),
            (known(capacity), new()),
            steps * each * (count + steps / 2 + 1),
            0.0,
        ),
        "a draw, the root a product": lambda: Task(
            jax.vmap(posterior.sample), (jr.split(key, agents), known(capacity)), each * count, 0.0
        ),
    }


def both(task: Task, device: Device) -> dict[str, Callable[[], Any]]:
    """The task's program without kernels and with them."""
    found = {}
    for name, platforms in (("plain", ()), ("kernel", (device.platform,))):
        with switched(*platforms):
            program, _ = compiled(task.function, *task.arguments)
        found[name] = partial(program, *task.arguments)
    return found


def errors(key: Key, device: Device, shape: tuple[int, int, int]) -> list[Figure]:
    """The distance of numbers from the plain programs' numbers, as a share of the largest."""
    found = []
    for name, make in tasks(key, *shape, steps=1).items():
        calls = both(make(), device)
        largest = [_apart(*pair) for pair in zip(*map(_numbers, _results(calls)), strict=True)]
        label = f"{name}: {shape[0]} agents, {shape[1]} features, error beside the plain program"
        found.append(Figure(label, max(largest), "of the largest", goal=f"<= {CLOSE:g}"))
    return found


def _results(calls: dict[str, Callable[[], Any]]) -> list[Any]:
    return [calls[name]() for name in ("plain", "kernel")]


def _numbers(found: Any) -> list[np.ndarray]:
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(found)]


def _apart(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.max(np.abs(one - other)) / max(np.max(np.abs(one)), 1e-30))


def ratios(name: str, make: Callable[[], Task], device: Device, repeats: int) -> list[Figure]:
    """Milliseconds of the plain program and of the kernel, each beside the floor."""
    task = make()
    calls = both(task, device)
    if not device.gpu:
        del calls["kernel"]  # interpreted: its time says nothing
    least = 1e3 * max(task.bytes / device.read, task.operations / device.fastest)
    took = {kind: 1e3 * float(np.min(s)) for kind, s in race(calls, repeats).items()}
    found = [
        Figure(f"{name}, {kind}", ms, "ms", f"its floor of {least:.3g} ms", least / ms)
        for kind, ms in took.items()
    ]
    if "kernel" in took:
        ratio = took["plain"] / took["kernel"]
        found.append(Figure(f"{name}, kernel", took["kernel"], "ms", "the plain program", ratio))
    return found


# ---------------------------------------------------------------- rounds


def of_rounds(case: Case, device: Device, kernels: bool, repeats: int) -> list[Figure]:
    """Microseconds an agent and round; for the population, seconds in all."""
    name = f"{case.kind}, {case.agents} agents, {case.rounds} rounds"
    name += f", in chunks of {case.chunk}" if case.chunk else ""
    name += ", kernels" if kernels else ", plain"
    rounds, optima = floor.rounds(case)
    with switched(*((device.platform,) if kernels else ())):
        program, compiling = compiled(rounds, jr.key(0), optima)
    took = race({"all": lambda: program(jr.key(0), optima)}, repeats)["all"]
    best, least = float(np.min(took)), floor.seconds(case, device.read, device.fastest)
    each = 1e6 / (case.agents * case.rounds)
    found = [
        Figure(name, best * each, "us", f"its floor of {least * each:.3g} us", least / best),
        Figure(f"{name}: compilation", compiling, "s"),
    ]
    if (case.agents, case.rounds) == (POPULATION, ROUNDS):
        found.append(Figure(f"{name}: in all", best, "s", goal=f"<= {GOAL:g}"))
    return found


def cases(sizes: tuple[int, ...], gpu: bool) -> list[tuple[Case, bool]]:
    """Numbers of agents by method, and whether with kernels."""
    found = []
    for agents in sizes:
        for kind in KINDS:
            # More than a chunk is tried at once as well: it may be too much.
            chunks = (None, CHUNK) if agents > CHUNK else (None,)
            found += [(Case(kind, agents, chunk=chunk), gpu) for chunk in chunks]
            if gpu and agents in BESIDE:
                found.append((Case(kind, agents), False))
    return found


# ---------------------------------------------------------------- all of it


class Sizes(NamedTuple):
    """How large everything is, and how often it is timed."""

    odd: tuple[tuple[int, int, int], ...]
    kernel: tuple[int, int, int]
    steps: int
    rounds: tuple[int, ...]
    population: Case
    repeats: int


FULL = Sizes(
    ODD,
    (AGENTS, FEATURES, floor.CANDIDATES),
    STEPS,
    SIZES,
    Case("DP-FTS-DE", POPULATION, ROUNDS, chunk=CHUNK),
    5,
)
SMALL = Sizes(((5, 12, 70),), (50, 20, 200), 2, (20,), Case("DP-FTS-DE", 30, 3, chunk=20), 1)


def measurements(
    part: str, key: Key, device: Device, sizes: Sizes
) -> Iterator[tuple[str, Callable[[], list[Figure]]]]:
    """The measurements of a part by name, each of which may fail for itself."""
    if part == "kernels":
        for shape in sizes.odd:
            yield f"errors for {shape}", partial(errors, key, device, shape)
        made = tasks(key, *sizes.kernel, steps=sizes.steps)
        for name, make in made.items():
            label = f"{name}: {sizes.kernel[0]} agents"
            yield label, partial(ratios, label, make, device, sizes.repeats)
    elif part == "population":
        for kernels in (True, False) if device.gpu else (False,):
            label = f"the population{', kernels' if kernels else ', plain'}"
            yield label, partial(of_rounds, sizes.population, device, kernels, 1)
    elif part == "rounds":
        for case, kernels in cases(sizes.rounds, device.gpu):
            label = f"{case.kind}, {case.agents} agents, chunk {case.chunk}"
            label += ", kernels" if kernels else ", plain"
            yield label, partial(of_rounds, case, device, kernels, min(sizes.repeats, 3))
    elif part == "max-sum":
        if device.gpu:
            yield "max-sum", partial(maxsum.iteration_figures, key, sizes.repeats)
        length = {} if device.gpu else {"variables": 50, "points": 8}
        yield "a chain", partial(maxsum.chain_figures, key, sizes.repeats, **length)
    else:
        yield "EGP", partial(egp.figures, key, 1, egp.NUMBERS[: 2 if device.gpu else 1])


def attempted(
    name: str, measure: Callable[[], list[Figure]], deadline: float
) -> list[Figure | Missing]:
    """The figures, or why there are none."""
    if time.perf_counter() > deadline:
        return [Missing(name, "no time left")]
    try:
        return list(measure())
    except Exception as error:  # what others say is still worth having
        text = str(error)
        if "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower():
            return [Missing(name, "out of memory")]
        lines = text.splitlines() or [""]
        return [Missing(name, f"failed: {type(error).__name__}: {lines[0][:60]}")]


def _run(options: Options) -> Result:
    """Everything, small without a GPU; --runs is how often each is timed."""
    # Before JAX looks for devices: the population takes more than the three quarters it would reserve.
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.92")
    deadline = time.perf_counter() + BUDGET
    gpu = jax.devices()[0].platform == "gpu"
    small = options.quick or not gpu
    sizes = SMALL if small else FULL
    sizes = sizes._replace(repeats=options.runs_or(FULL.repeats, SMALL.repeats))
    device = Device(bandwidth(sizes.repeats), floor.rate(Case()), gpu)
    key = jr.key(options.seed)
    found: list[Figure | Missing] = []
    for part in progress(options.only or (QUICK if small else PARTS), "gpu"):
        for name, measure in measurements(part, key, device, sizes):
            found += attempted(name, measure, deadline)
    figures = [row for row in found if isinstance(row, Figure)]
    missing = [row for row in found if isinstance(row, Missing)]
    return Result(
        {
            "device": jax.devices()[0].device_kind,
            "kernels": "on the GPU" if gpu else "interpreted, no GPU",
            "bytes a second": device.read,
            "operations a second": device.fastest,
            "figures": [{k: v for k, v in asdict(f).items() if k != "values"} for f in figures],
            "missing": {row.name: row.why for row in missing},
        },
        finals={f"{f.name}, {f.unit} {f.beside}".strip(): np.asarray([f.value]) for f in figures},
        checks=checked(figures)
        | {row.name: met(math.nan, most=0) for row in missing if row.why.startswith("failed")},
        headers=HEADERS,
        rows=[row.cells() for row in found],
    )


EXPERIMENT = Experiment(
    source="no paper; beside the plain programs and the device's floor",
    about="kernels of our own and rounds of up to a million agents on one GPU",
    time="8 min",
    run=_run,
    problems=PARTS,
)
