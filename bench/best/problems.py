"""The problems of the comparison, and the words that choose among them.

    bbob         BBOB's 24 functions in 2, 5, 10 and 20 dimensions, instances 1 to 3
    noisy        the same; noise has a deviation of 1 % of the interquartile range of the values
    classical    functions of `jaxbo.objectives.functions`
    high         paths of a rover and penalties of a Lasso in 20 to 100 dimensions, of `bench.tasks.high`;
                 their regret is beside a bound, since the best value is not known

Odd numbers are for choosing settings. Even numbers are for the final table alone: no setting may depend
on them. The range is that of 1000 random points.
"""

import functools
import zlib
from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bench.tasks import high
from bench.tasks.bbob.functions import BBOB, FUNCTIONS
from jaxbo.objectives import functions
from jaxbo.objectives.functions import TestFunction
from jaxbo.types import Count, Point, Scalar

DIMS, INSTANCES = (2, 5, 10, 20), (1, 2, 3)
#: The noise's deviation in interquartile ranges, and the points that the range is measured on.
NOISE, SAMPLE = 0.01, 1000
#: Random points before the first query.
INITIAL = 10
PLAIN, NOISY, CLASSICAL, HIGH = "bbob", "noisy", "classical", "high"
#: The letters of numbers; functions of BBOB have another.
LETTERS, BBOB_LETTER = {CLASSICAL: "c", HIGH: "h"}, "f"

_CLASSICAL: tuple[tuple[str, Callable[[], TestFunction]], ...] = (
    ("Branin", functions.branin),
    ("drop-wave", functions.dropwave),
    ("eggholder", functions.eggholder),
    ("Sobester", functions.sobester),
    ("Hartmann-3", functions.hartmann3),
    ("Rosenbrock-4", functools.partial(functions.rosenbrock, 4)),
    ("Zakharov-4", functions.zakharov),
    ("Shekel", functions.shekel4),
    ("Ackley-5", functions.ackley5),
    ("Levy-5", functools.partial(functions.levy, 5)),
    ("Hartmann-6", functions.hartmann6),
    ("Michalewicz-10", functions.michalewicz10),
)


_HIGH: tuple[tuple[str, Callable[[], "BoundedFunction"]], ...] = (
    ("rover-20", functools.partial(high.rover, 10)),
    ("lasso-20", functools.partial(high.lasso, 20)),
    ("rover-60", functools.partial(high.rover, 30)),
    ("lasso-60", functools.partial(high.lasso, 60)),
    ("lasso-100", functools.partial(high.lasso, 100)),
)


class CubeFunction(Protocol):
    """A JAX function of a point of the unit cube, to be maximized."""

    @property
    def dim(self) -> int: ...

    def __call__(self, x: Point, /) -> Scalar: ...


class BoundedFunction(CubeFunction, Protocol):
    """The same, with its largest value or a bound of it."""

    @property
    def maximum(self) -> float | Scalar: ...


class CubeProblem(NamedTuple):
    """A function. `group` is BBOB's own. Those of a `program` and dimension share what is compiled."""

    name: str
    kind: str
    group: str
    number: int
    instance: int
    program: str
    function: CubeFunction

    @property
    def dim(self) -> int:
        """The number of coordinates."""
        return self.function.dim

    @property
    def argument(self) -> CubeFunction:
        """The function as its compiled program takes it."""
        if not isinstance(self.function, TestFunction):
            return self.function
        alike = tuple(f for f in _classical_functions() if f.dim == self.dim)
        return Numbered(jnp.asarray([f.name for f in alike].index(self.function.name)), alike)

    @property
    def words(self) -> frozenset[str]:
        """The words that choose it."""
        letter = LETTERS.get(self.kind, BBOB_LETTER)
        parity = "odd" if self.number % 2 else "even"
        number, instance = f"{letter}{self.number:02d}", f"i{self.instance}"
        return frozenset({self.kind, parity, f"{self.dim}d", number, instance})

    def regrets(self, x: Float[np.ndarray, "points dim"]) -> Float[np.ndarray, " points"]:
        """The maximum, or its bound, less the value without noise, at each point."""
        if isinstance(self.function, BBOB):
            return np.array([self.function.regret(one) for one in x])
        return _shortfall(cast(BoundedFunction, self.function), x)

    def scale(self) -> float:
        """The interquartile range of the values."""
        x = np.random.default_rng(0).random((SAMPLE, self.dim))
        low, high = np.quantile(self.regrets(x), [0.25, 0.75])
        return float(high - low)

    def noise(self) -> float:
        """The deviation of the noise."""
        return NOISE * self.scale() if self.kind == NOISY else 0.0


class Numbered(eqx.Module):
    """A function by its number among several of a dimension."""

    number: Count
    functions: tuple[TestFunction, ...]

    @property
    def dim(self) -> int:
        """The number of coordinates."""
        return self.functions[0].dim

    def __call__(self, x: Point) -> Scalar:
        return jax.lax.switch(self.number, [lambda x, f=f: f(x) for f in self.functions], x)


def _shortfall(function: BoundedFunction, x: np.ndarray) -> np.ndarray:
    return float(function.maximum) - np.asarray(_values(function, jnp.asarray(x, float)), float)


@eqx.filter_jit
def _values(function: CubeFunction, x: Float[Array, "points dim"]) -> Float[Array, " points"]:
    return jax.vmap(function)(x)


class Beginning(NamedTuple):
    """The beginning of a run with any method: points, and noise of deviation 1 for all evaluations.

    The coordinates are float32 numbers, which every method can hold.
    """

    x: Float[np.ndarray, "initial dim"]
    noise: Float[np.ndarray, " evaluations"]


def start(
    problem: CubeProblem, run: int, rounds: int, seed: int, initial: int = INITIAL
) -> Beginning:
    """The beginning of a run."""
    rng = np.random.default_rng([seed, run, zlib.crc32(problem.name.encode())])
    x = rng.random((initial, problem.dim), np.float32).astype(float)
    return Beginning(x, rng.standard_normal(initial + rounds))


# ---------------------------------------------------------------- which


@functools.cache
def everything() -> tuple[CubeProblem, ...]:
    """All problems."""
    bbob = [
        _bbob(kind, number, dim, index)
        for kind in (PLAIN, NOISY)
        for dim in DIMS
        for index in INSTANCES
        for number in FUNCTIONS
    ]
    classical = [_classical(number) for number in range(1, len(_CLASSICAL) + 1)]
    return (*bbob, *classical, *(_high(number) for number in range(1, len(_HIGH) + 1)))


def example(program: str, dim: int) -> CubeFunction:
    """An argument of a compiled program."""
    return next(p.argument for p in everything() if (p.program, p.dim) == (program, dim))


def _bbob(kind: str, number: int, dim: int, index: int) -> CubeProblem:
    name = f"{kind} f{number:02d} i{index} {dim}d"
    return CubeProblem(
        name, kind, FUNCTIONS[number].group, number, index, PLAIN, _instance(number, dim, index)
    )


#: With and without noise it is the same function.
_instance = functools.cache(BBOB)


def _classical(number: int) -> CubeProblem:
    name, _ = _CLASSICAL[number - 1]
    title, function = f"{CLASSICAL} c{number:02d} {name}", _classical_functions()[number - 1]
    return CubeProblem(title, CLASSICAL, CLASSICAL, number, 1, CLASSICAL, function)


def _high(number: int) -> CubeProblem:
    name, make = _HIGH[number - 1]
    return CubeProblem(f"{HIGH} h{number:02d} {name}", HIGH, HIGH, number, 1, name, make())


@functools.cache
def _classical_functions() -> tuple[TestFunction, ...]:
    return tuple(make() for _, make in _CLASSICAL)


PARITIES = "odd", "even"
#: Words of one line exclude each other; a problem is chosen if each line with a given word has its word.
WORDS = (
    (PLAIN, NOISY, CLASSICAL, HIGH),
    PARITIES,
    tuple(f"{dim}d" for dim in (2, 3, 4, 5, 6, 10, 20, 60, 100)),
    tuple(f"i{index}" for index in INSTANCES),
    tuple(
        f"{letter}{number:02d}"
        for letter, numbers in (
            (BBOB_LETTER, FUNCTIONS),
            (LETTERS[CLASSICAL], range(1, len(_CLASSICAL) + 1)),
            (LETTERS[HIGH], range(1, len(_HIGH) + 1)),
        )
        for number in numbers
    ),
)


def chosen(words: tuple[str, ...]) -> tuple[CubeProblem, ...]:
    """The problems that some words choose; without a word all problems."""
    given = [set(line) & set(words) for line in WORDS]
    lines = [line for line in given if line]
    return tuple(p for p in everything() if all(line & p.words for line in lines))
