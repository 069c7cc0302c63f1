"""An iteration of DEC-HBO in up to 1811 dimensions: how it grows with them, factors and observations.

    a query and an observation at every evaluation, a fit at every tenth; the objective apart

The graph is that of `dec-gp`: chains of hyperparameters, cut into overlapping factors.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from bench.common.search import INITIAL
from bench.common.timing import Figure, compiled, race
from bench.dec.methods import REFIT, chains
from bench.tasks.sparse_gp import dimensions

#: What an iteration is made of.
PARTS = ("query", "observation", "fit")


class Size(NamedTuple):
    """Inducing inputs of the sparse process, variables of a factor, observations so far."""

    inducing: int
    factor: int
    observations: int

    def __str__(self) -> str:
        return (
            f"{dimensions(self.inducing)} dimensions, factors of {self.factor}, "
            f"{self.observations} observations"
        )


#: The size that is asked for, and those it is compared with.
WHOLE = Size(200, 2, 150)
FEWER = Size(50, 2, 150), Size(10, 2, 150)
OTHERS = Size(200, 1, 150), Size(200, 3, 150), Size(200, 2, 40), Size(200, 2, 80)
SIZES = (WHOLE, *FEWER, *OTHERS)


def figures(repeats: int, sizes: tuple[Size, ...] = SIZES) -> list[Figure]:
    """Seconds of an iteration of each size, and its parts of the largest; exponents of its growth."""
    seconds = {size: iteration(size, repeats) for size in sizes}
    rounds = {size: each(some) for size, some in seconds.items()}
    found = [Figure(f"DEC-HBO, {size}: an iteration", s, "s") for size, s in rounds.items()]
    found += [
        Figure(f"DEC-HBO, {WHOLE}: {part}", float(s), "s")
        for part, s in zip(PARTS, seconds.get(WHOLE, ()), strict=False)
    ]
    if {WHOLE, FEWER[0]} <= set(sizes):
        few, all_of_them = (dimensions(size.inducing) for size in (FEWER[0], WHOLE))
        power = growth(rounds, FEWER[0], few / all_of_them)
        found.append(Figure("DEC-HBO: exponent of dimensions", power, "power", goal="<= 1.1"))
    if {WHOLE, OTHERS[2]} <= set(sizes):
        power = growth(rounds, OTHERS[2], OTHERS[2].observations / WHOLE.observations)
        found.append(Figure("DEC-HBO: exponent of observations", power, "power"))
    return found


def growth(rounds: dict[Size, float], smaller: Size, share: float) -> float:
    """The power of `share` by which an iteration of the smaller problem takes less than `WHOLE`."""
    return math.log(rounds[smaller] / rounds[WHOLE]) / math.log(share)


def each(seconds: np.ndarray) -> float:
    """The seconds of an evaluation, on average."""
    query, observation, fit = seconds
    return float(query + observation + fit / REFIT)


def iteration(size: Size, repeats: int) -> np.ndarray:
    """Seconds of each part after so many observations, compiled before; the least of all."""
    observations, dim = size.observations, dimensions(size.inducing)
    algorithm: Any = chains(size.factor)(size.inducing, observations + 1 - INITIAL)
    x_key, key = jr.split(jr.key(0))
    x = jr.uniform(x_key, (observations, 1, dim))
    # Any smooth function: what it costs is not measured.
    y = -jnp.mean((x - 0.3) ** 2, axis=2)
    state = jax.jit(lambda k: algorithm.warm_start(algorithm.init(k), x, y))(key)
    surrogate = algorithm.surrogate
    calls = {
        "query": (lambda s: algorithm.ask(key, s)[0], (state,)),
        "observation": (
            lambda s: surrogate.condition(s.shared, s.belief, x[0, 0], y[0, 0]),
            (state,),
        ),
        "fit": (lambda s: surrogate.refit(s.shared, s.belief), (state,)),
    }
    programs = {name: compiled(call, *given)[0] for name, (call, given) in calls.items()}
    seconds = race({n: lambda n=n: programs[n](*calls[n][1]) for n in PARTS}, repeats)
    return np.array([seconds[name].min() for name in PARTS])
