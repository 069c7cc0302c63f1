"""What the speed measurements share: a figure with its goal, and times taken side by side."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Figure:
    """One measurement. `ratio` says how many times better it is than what ran `beside` it.

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
        """What the goal is about: the ratio where it is one, else the figure."""
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
    """Seconds of every call, `repeats` times in turn, after one that does not count.

    In turn, so that what else the machine does falls on all of them alike.
    """
    for call in calls.values():
        jax.block_until_ready(call())
    seconds = [[_seconds(call) for call in calls.values()] for _ in range(repeats)]
    return dict(zip(calls, np.array(seconds).T, strict=True))


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def compiled(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """The compiled program for these arguments, and the seconds of tracing and compiling it."""
    start = time.perf_counter()
    program = jax.jit(function).lower(*arguments).compile()
    return program, time.perf_counter() - start


#: Bytes that are read to measure the bandwidth: more than caches hold.
BYTES = 2**29


def bandwidth(repeats: int) -> float:
    """Bytes a second with which a large array is read, the fastest of `repeats` times."""
    array = jnp.zeros((BYTES // 4,), jnp.float32)
    total = jax.jit(jnp.sum)
    seconds = race({"read": lambda: total(array)}, repeats)["read"]
    return BYTES / float(seconds.min())
