"""The size of the program of each method's `run`, as JAX hands it to XLA and as XLA leaves it.

    lines             of StableHLO, before all passes
    instructions      that are left after all passes
    kernels           of them the fusions, each of which LLVM compiles
    decompositions    calls of LAPACK: Cholesky, eigen- and QR decompositions
    conditionals      whose branches are both compiled

Sizes do not depend on the speed of a machine. `bench methods` has the seconds of the same programs.
"""

import re
from functools import partial
from typing import NamedTuple

import jax
import jax.random as jr
import numpy as np

from bench.runner import Experiment, Options, Result, progress
from bench.speed.defaults import AGENTS, INITIAL, METHODS, ROUNDS, whole

#: Calls of Cholesky, eigen- and QR decompositions in a compiled program.
DECOMPOSITION = r'custom_call_target="lapack_s?(?:potrf|syevd|geqrf)\w*"'


class ProgramSizes(NamedTuple):
    """Numbers of lines before all passes, and of what is left after them."""

    lines: int
    instructions: int
    kernels: int
    decompositions: int
    conditionals: int


def sizes(name: str) -> ProgramSizes:
    """The program of a method's run."""
    lowered = jax.jit(partial(whole, METHODS[name](AGENTS))).lower(jr.key(0))
    text = lowered.compile().as_text() or ""
    return ProgramSizes(
        lowered.as_text().count("\n"),
        text.count(" = "),
        text.count(" fusion("),
        len(re.findall(DECOMPOSITION, text)),
        text.count(" conditional("),
    )


def _run(options: Options) -> Result:
    """All methods."""
    names = ["TS", "FTS"] if options.quick else list(METHODS)
    found = {name: sizes(name) for name in progress(names, "programs")}
    return Result(
        {
            "agents": AGENTS,
            "rounds": ROUNDS,
            "initial points": INITIAL,
            "programs": {name: size._asdict() for name, size in found.items()},
        },
        finals={name: np.asarray([float(size.lines)]) for name, size in found.items()},
        headers=("method", *ProgramSizes._fields),
        rows=[(name, *map(str, size)) for name, size in found.items()],
        unit="lines of StableHLO",
    )


EXPERIMENT = Experiment(
    source="no paper",
    about="the size of each method's program",
    time="4 min",
    run=_run,
)
