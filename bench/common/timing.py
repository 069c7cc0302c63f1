"""Parts that measurements of speed share: a figure with its goal, times taken side by side, processes of
their own.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Figure:
    """One measurement. `ratio` says how many times better it is than the program `beside` it.

    `holds` is whether `goal` is met, None where there is none. `values` are all repeats behind `value`.
    """

    name: str
    value: float
    unit: str
    beside: str = ""
    ratio: float | None = None
    goal: str = ""
    holds: bool | None = None
    values: tuple[float, ...] = ()

    def deciding(self) -> float:
        """The number that the goal is about: the ratio if there is one, else the figure."""
        return self.value if self.ratio is None or not self.goal.endswith("x") else self.ratio

    def cells(self) -> tuple[str, ...]:
        """A row of the table."""
        ratio = "" if self.ratio is None else f"{self.ratio:.3g} x"
        met = "" if self.holds is None else ("met" if self.holds else "NOT MET")
        return (self.name, f"{self.value:.3g}", self.unit, ratio, self.beside, self.goal, met)


HEADERS = ("measurement", "figure", "unit", "better by", "than", "goal", "")


def at_most(goal: float, figure: float) -> dict[str, Any]:
    """The goal that a figure stays at or below."""
    return {"goal": f"<= {goal:g}", "holds": bool(figure <= goal)}


def at_least(goal: float, figure: float) -> dict[str, Any]:
    """The goal that a figure reaches."""
    return {"goal": f">= {goal:g}", "holds": bool(figure >= goal)}


def race(calls: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, np.ndarray]:
    """Seconds of every call, `repeats` times in turn, after a call that does not count.

    In turn, so that other work of the machine falls on all of them alike.
    """
    for call in calls.values():
        jax.block_until_ready(call())
    seconds = [[_seconds(call) for call in calls.values()] for _ in range(repeats)]
    return dict(zip(calls, np.array(seconds).T, strict=True))


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def best(call: Callable[[], Any], repeats: int) -> float:
    """Seconds of the fastest call."""
    return float(race({"call": call}, repeats)["call"].min())


def compiled(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """The compiled program for the arguments, and the seconds of tracing and compiling it."""
    start = time.perf_counter()
    program = jax.jit(function).lower(*arguments).compile()
    return program, time.perf_counter() - start


def held(program: Any) -> int:
    """Bytes that a compiled program holds at once: arguments, results, and intermediate arrays."""
    sizes = program.memory_analysis()
    return sizes.temp_size_in_bytes + sizes.argument_size_in_bytes + sizes.output_size_in_bytes


def elsewhere(module: str, *arguments: str, flags: str = "") -> Any:
    """The last output, as JSON, of `python -m module arguments` in a process of its own.

    `flags` are added to XLA's.
    """
    environment = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()}
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    return json.loads(done.stdout.splitlines()[-1])


#: Bytes that are read to measure the bandwidth: more than caches hold. A GPU reads the smaller array in
#: the time that it takes to start.
BYTES, BYTES_GPU = 2**29, 2**32


def bandwidth(repeats: int) -> float:
    """Bytes a second with which a large array is read, the fastest of `repeats` times."""
    size = BYTES_GPU if jax.devices()[0].platform == "gpu" else BYTES
    array = jax.lax.iota(jnp.float32, size // 4)
    total = jax.jit(jnp.sum)
    seconds = race({"read": lambda: total(array)}, repeats)["read"]
    return size / float(seconds.min())
