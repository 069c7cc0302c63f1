"""How the steps of a loop with a Python objective, and of a federation's parties, are compiled: soon.

They wait for evaluations anyway.

A compiler that optimizes little has a program in a fifth to a half of the time. CPU seconds of compiling
both steps of an ensemble of four exact processes, and of all its steps in a run, on jax 0.9:

    capacity                                50           100          200
    as by default                           17 + 0.5     17 + 2.1     16 + 14
    no emitters, level 1 of LLVM            8.7 + 0.5    8.8 + 2.1    8.6 + 16
    no emitters, level 0                    3.1 + 1.7    3.2 + 9.8    2.9 + 73

So small models have level 0, large models level 1. A compiled objective has the default, for which `run`
and `drive` agree in every bit. On a GPU all have the default.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
import jaxlib

from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.base.one_model import AbstractOneModel

#: Options of the compiler, in an order.
Options: TypeAlias = tuple[tuple[str, Any], ...]
DEFAULT: Options = ()

#: Newer emitters optimize most, and take longest. Later versions have nothing else.
_EMITTERS: Options = (("xla_cpu_use_fusion_emitters", False),)
_OLDER: Options = _EMITTERS if jaxlib.version.__version_info__ < (0, 12) else ()
_LEVEL = "xla_backend_optimization_level"

#: The cube of a small model's capacity, over all agents with a model of their own, is at most this.
_SMALL = 64**3
#: The capacity of a model that has no limit: it costs no more with more observations.
_UNLIMITED = 50


def options(algorithm: AbstractAlgorithm, *, of_one: bool = False) -> Options:
    """Options with which a method's steps are compiled soon, and not much slower for it.

    `of_one`: the programs are of one agent, not of all.
    """
    if jax.default_backend() != "cpu":
        return DEFAULT
    if isinstance(algorithm, AbstractOneModel):
        models, capacity = 1, algorithm.surrogate.capacity
    else:
        models, capacity = 1 if of_one else algorithm.targets, algorithm.capacity
    work = models * (_UNLIMITED if capacity is None else capacity) ** 3
    return (*_OLDER, (_LEVEL, 0 if work <= _SMALL else 1))


@functools.cache
def compiled(
    step: Callable[..., Any],
    options: Options = DEFAULT,
    donate: Literal["all-except-first", "none"] = "none",
) -> Callable[..., Any]:
    """A step as a program of its own, under options of the compiler."""
    chosen = {"compiler_options": dict(options)} if options else {}
    return eqx.filter_jit(step, donate=donate, **chosen)
