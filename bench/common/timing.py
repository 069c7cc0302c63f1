"""Parts that measurements of speed share: a figure with its goal, times taken side by side, processes of
their own.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench import claims
from bench.claims import Check


@dataclass(frozen=True)
class Figure:
    """One measurement. `ratio` says how many times better it is than the program `beside` it.

    `goal` is what the figure, or the ratio where it ends in x, is to be at most or at least. `values` are
    all repeats behind `value`; they are a sample of something random where `sample` says how it is summed
    up: by mean, median or share, in percent.
    """

    name: str
    value: float
    unit: str
    beside: str = ""
    ratio: float | None = None
    goal: str = ""
    values: tuple[float, ...] = ()
    sample: str = ""

    def check(self) -> Check:
        """Whether the goal is met."""
        sign, words = self.goal.split(" ")[0], self.goal.split(" ", 1)[1]
        goal = float(words.removesuffix("x"))
        ends = {"most" if sign == "<=" else "least": goal}
        if words.endswith("x"):
            return claims.met(self.value if self.ratio is None else self.ratio, **ends)
        values = np.asarray(self.values)
        if self.sample == claims.SHARE:
            found = claims.share(values > 0, **dict.fromkeys(ends, goal / 100))
            return found._replace(**_percent(found))
        if self.sample == claims.MEDIAN:
            return claims.median(values, **ends)
        return claims.on_average(values, **ends) if self.sample else claims.met(self.value, **ends)

    def cells(self) -> tuple[str, ...]:
        """A row of the table."""
        ratio = "" if self.ratio is None else f"{self.ratio:.3g} x"
        met = claims.SYMBOLS[self.check().outcome] if self.goal else ""
        return (self.name, f"{self.value:.3g}", self.unit, ratio, self.beside, self.goal, met)


def _percent(check: Check) -> dict[str, Any]:
    """A check of a share, in percent."""
    low, high = check.interval or claims.EVERYWHERE
    least, most = check.margin
    return {
        "figure": 100 * check.figure,
        "interval": (100 * low, 100 * high),
        "margin": (100 * least, 100 * most),
    }


def checked(figures: Iterable[Figure]) -> dict[str, Check]:
    """The checks of those that have a goal."""
    return {f"{figure.name}, {figure.goal}": figure.check() for figure in figures if figure.goal}


HEADERS = ("measurement", "figure", "unit", "better by", "than", "goal", "")


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
    flags = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    return json.loads(python("-m", module, *arguments, XLA_FLAGS=flags).splitlines()[-1])


def python(*arguments: str, **variables: str) -> str:
    """What `python arguments` prints. As where jaxbo is installed, the bytecode of imports is kept."""
    environment = os.environ | variables
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    return done.stdout


def resident() -> int:
    """Bytes of memory that this process has held at most so far."""
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage would do, but for that Linux lets a process begin with its parent's peak.
        line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) * 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


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
