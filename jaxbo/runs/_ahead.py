"""Steps that are compiled in a thread while the first evaluations run."""

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import PyTree

from jaxbo.algos.base.one_model import AbstractOneModel
from jaxbo.algos.base.outcomes import width
from jaxbo.domains.space import Space
from jaxbo.runs import _soon, _steps
from jaxbo.runs._context import over
from jaxbo.types import Key


class Ahead:
    """Compiles steps in turn, in a thread of its own, from `start` on.

    Each of `steps` is a function under `eqx.filter_jit`, and makes its arguments of a state. A later
    call with arguments of the same shapes finds it compiled. An error is left to that call. JAX's
    settings for a thread, such as `with jax.enable_x64()`, do not reach another thread: the call then
    compiles anew. A process that is interrupted ends when the step in hand is compiled.
    """

    def __init__(self, *steps: tuple[Any, Callable[[PyTree], tuple]]):
        self._steps, self._thread = steps, None

    def start(self, state: PyTree) -> None:
        """Begins; again, it does nothing. The state is held until `wait`."""
        if self._thread is None:
            thread = threading.Thread(target=self._compile, args=(state,))
            with contextlib.suppress(RuntimeError):  # where there are no more threads
                thread.start()
                self._thread = thread

    def wait(self) -> None:
        """Until all is compiled, if it was started: nothing is compiled twice."""
        if self._thread is not None:
            self._thread.join()

    def _compile(self, state: PyTree) -> None:
        for step, arguments in self._steps:
            try:
                step.lower(*arguments(state)).compile()
            except Exception:
                return


def of_workers(
    algorithm: AbstractOneModel, key: Key, initial: int, options: _soon.Options
) -> Ahead:
    """`tell_one` and `ask_one`, with arguments as a desk gives them."""
    if isinstance(algorithm.domain, Space):
        algorithm = over(algorithm, algorithm.domain.somewhere)
    count, dim = _steps.slots(algorithm), algorithm.domain.dim
    told = jnp.zeros(dim), jnp.zeros(width(algorithm.outcomes)), _steps.stage(0, initial)
    out = jnp.zeros((count, dim)), jnp.zeros(count, bool)
    return Ahead(
        (_soon.compiled(_steps.tell_one, options), lambda state: (algorithm, state, *told)),
        (_soon.compiled(_steps.ask_one, options), lambda state: (algorithm, key, state, *out)),
    )
