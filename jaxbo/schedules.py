"""Round -> a number, for rounds t = 1, 2, ...: mostly the probability pₜ of an agent's own sample.

    Constant         pₜ = probability
    InverseSqrt      pₜ = 1 - 1/√t
    Inverse          pₜ = 1 - 1/t         each with p₁ = p₂, as FTS has it
    InverseSquare    pₜ = 1 - 1/t²
    Power            pₜ = 1 - max(t + shift, 2)^(-exponent)
    Table            pₜ = probabilities[min(t, length) - 1]
    OfRound          pₜ = function(t)
    Confidence       βₜ = 2 log(points π² t² / 6δ), of upper bounds that hold together
    Continuous       the same on a continuous domain

DP-FTS-DE prints p₁ = 0, with which all first queries are made from the broadcast: `OfRound` of
`lambda t: 1 - t**-0.5`, or a `Table`.

Round t = 1 is the first after the initial points. Theorem 1 of FTS (Dai, Low and Jaillet, 2020) bounds
the regret when pₜ never falls, tends to 1, and, for every t > 1,

    (1 - pₜ) cₜ ≤ (1 - p₁) c₁,    cₜ = βₜ (1 + √(2 log(n t²))),    n the points of the domain.

In CEPE `explores` says in which rounds agents explore, from how often they may have done so by then:
`growing`, `optimal` and `first` are such numbers.

Each class says where it stands for β constant, which is how the paper runs its experiments. With
the theorem's own βₜ, which grows with the information gain, the condition asks for more.
"""

import abc
import math
from collections.abc import Callable, Sequence
from numbers import Real

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxbo._check import positive_number, require, shown, whole
from jaxbo._extensible import Extensible
from jaxbo.types import Count, Scalar, about, as_pytree, floating, named

#: 1 - 1/t is 0 at t = 1, which FTS's p_t may not be: it sets p₁ = p₂. DP-FTS-DE's may be 0.
_FIRST = 2


def _probability(value: ArrayLike | Sequence[float]) -> Scalar:
    value = _probabilities(value)
    require(value.ndim == 0, f"expected one probability, got an array of shape {value.shape}.")
    return value


def _table(values: ArrayLike | Sequence[float]) -> Float[Array, " rounds"]:
    values = _probabilities(values)
    require(
        values.ndim == 1 and values.size > 0,
        f"expected a list of probabilities, one a round, got an array of shape {values.shape}.",
    )
    return values


def _probabilities(values: ArrayLike | Sequence[float]) -> Float[Array, "..."]:
    values = floating(values)
    require(
        (values >= 0) & (values <= 1),
        f"probabilities must lie in [0, 1], got {values}: 1 is one's own sample always, and 0 never.",
    )
    return values


class AbstractSchedule(Extensible):
    """A number for every round.

    Example:
        >>> import jaxbo
        >>> issubclass(jaxbo.schedules.Constant, jaxbo.schedules.AbstractSchedule)
        True
    """

    @abc.abstractmethod
    def __call__(self, t: Count) -> Scalar:
        """The value in round t; rounds count from 1."""


class Constant(AbstractSchedule):
    """The same probability in every round.

    Theorem 1 covers only the probability 1, which is Thompson sampling without help from others. Below
    1 this is a heuristic, whose regret may grow linearly where agents differ.

    Args:
        probability: The probability, in [0, 1].

    Raises:
        ValueError: The probability lies outside [0, 1].

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> float(jaxbo.schedules.Constant(0.5)(jnp.array(7)))
        0.5
    """

    probability: Scalar = eqx.field(converter=about("probability", _probability))

    def __call__(self, t: Count) -> Scalar:
        del t
        return self.probability


class InverseSqrt(AbstractSchedule):
    """The probabilities pₜ = 1 - 1/√t, with p₁ = p₂, of the synthetic experiments of FTS and DP-FTS-DE.

    Theorem 1's condition fails in round 2, and holds from round 3 on if the domain has at least 21
    points. `Power` says more. The bound on the regret is of order √T.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> float(jaxbo.schedules.InverseSqrt()(jnp.array(16)))
        0.75
    """

    def __call__(self, t: Count) -> Scalar:
        return _own(t.astype(float), -0.5)


class Inverse(AbstractSchedule):
    """The probabilities pₜ = 1 - 1/t, with p₁ = p₂, of the real experiments of DP-FTS-DE.

    Theorem 1's condition fails in round 2, and holds from round 3 on if the domain has at least 3
    points. `Power` says more.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> float(jaxbo.schedules.Inverse()(jnp.array(4)))
        0.75
    """

    def __call__(self, t: Count) -> Scalar:
        return _own(t.astype(float), -1.0)


class InverseSquare(AbstractSchedule):
    """The probabilities pₜ = 1 - 1/t², with p₁ = p₂, of the real experiments of FTS, where others are
    heard in few rounds only.

    Theorem 1's condition fails in round 2, and holds from round 3 on if the domain has at least 2
    points. `Power` says more.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> float(jaxbo.schedules.InverseSquare()(jnp.array(4)))
        0.9375
    """

    def __call__(self, t: Count) -> Scalar:
        return _own(t.astype(float), -2.0)


class Power(AbstractSchedule):
    """The probabilities pₜ = 1 - max(t + shift, 2)^(-exponent): samples of others are used ever more
    rarely.

    `InverseSqrt`, `Inverse` and `InverseSquare` are the exponents 1/2, 1 and 2 with `shift` 0. Here
    both are numbers to sweep over.

    With `shift` 0 the schedule never falls and tends to 1. But p₁ = p₂ < 1 and c₂ > c₁, so the last
    condition of Theorem 1 fails in round 2, for every exponent and domain. For the exponents 1/2, 1 and
    2 it holds from round 3 on if the domain has at least 21, 3 and 2 points. The proof uses the
    condition only for ψₜ ≤ ψ₁ + O(√log t), which a single round changes by a constant: the order of the
    bound stands, its printed statement does not.

    With `shift` 1 the same schedule is one round ahead. Theorem 1 then covers the exponents 1/2, 1 and
    2 as printed if the domain has at least 6, 2 and 2 points. Any other exponent is a heuristic until
    the condition is checked for it: a small exponent asks for a very large domain.

    Args:
        exponent: The exponent, positive.
        shift: A number of rounds, finite and at least 0.

    Raises:
        ValueError: The exponent is not positive, or the shift is negative.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> float(jaxbo.schedules.Power(1.0, shift=1)(jnp.array(1)))
        0.5
    """

    exponent: Scalar = eqx.field(converter=named("exponent"))
    shift: Scalar = eqx.field(converter=named("shift"), default=0.0)

    def __check_init__(self):
        positive_number("exponent", self.exponent)
        require(self.shift.ndim == 0, f"shift must be one number, got {self.shift}.")
        require(
            (self.shift >= 0) & jnp.isfinite(self.shift),
            f"shift must be finite and not negative, got {self.shift}: it is a number of rounds.",
        )

    def __call__(self, t: Count) -> Scalar:
        dtype = self.exponent.dtype
        return _own(t.astype(dtype) + self.shift.astype(dtype), -self.exponent)


class Table(AbstractSchedule):
    """Any probabilities, one for each round. The last goes on for ever.

    Theorem 1 covers a table that never falls, ends in 1, and meets the condition in the module's
    docstring at every entry. Any other table is a heuristic.

    Args:
        probabilities: The probabilities, in [0, 1].

    Raises:
        ValueError: The table is empty, or a probability lies outside [0, 1].

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> table = jaxbo.schedules.Table([0.25, 0.5, 1.0])
        >>> [float(table(jnp.array(t))) for t in (1, 2, 9)]
        [0.25, 0.5, 1.0]
    """

    probabilities: Float[Array, " rounds"] = eqx.field(converter=about("probabilities", _table))

    def __call__(self, t: Count) -> Scalar:
        return self.probabilities[jnp.clip(t - 1, 0, self.probabilities.size - 1)]


class OfRound(AbstractSchedule):
    """A function of the round t = 1, 2, …, written with `jax.numpy`.

    The round is traced. The caller sees to it that probabilities lie in [0, 1]. Arrays of a module, or
    bound by a `functools.partial`, are data. All else is part of the program.

    Args:
        function: The function.

    Raises:
        ValueError: It is not a function.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> float(jaxbo.schedules.OfRound(lambda t: 1 - 1 / t**2)(jnp.array(2)))
        0.75
    """

    function: Callable[[Count], Scalar] = eqx.field(converter=as_pytree)

    def __check_init__(self):
        fine = callable(self.function) and not isinstance(self.function, type)
        require(fine, f"function must be one of the round, got {shown(self.function)}.")

    def __call__(self, t: Count) -> Scalar:
        return jnp.asarray(self.function(t), float)


def as_schedule(
    value: AbstractSchedule | Callable[[Count], Scalar] | ArrayLike,
    name: str = "value",
) -> AbstractSchedule:
    """Makes a schedule of a number or a function.

    Args:
        value: A schedule stays as it is, a function becomes an `OfRound`, and a number a `Constant`.
        name: Name of the argument, for errors. Default: "value".

    Returns:
        The schedule.

    Raises:
        ValueError: It is anything else, such as a list (take `Table`), or a number outside [0, 1].

    Example:
        >>> import jaxbo
        >>> type(jaxbo.schedules.as_schedule(0.5)).__name__
        'Constant'
    """
    if isinstance(value, AbstractSchedule):
        return value
    if callable(value) and not isinstance(value, type):
        return OfRound(value)
    require(
        eqx.is_array_like(value),
        f"{name}: expected a number, a function of the round or a schedule such as Power(0.5), got "
        f"{shown(value)}.",
    )
    return Constant(about(name, _probability)(value))


class Confidence(AbstractSchedule):
    """The numbers βₜ = 2 log(points π² t² / 6δ): with probability 1 - δ, mean + √βₜ std bounds all values
    in all rounds.

    This is Srinivas et al. (2010). For DEC-HBO's Theorem 1, `points` is the size of the domain times
    the number of factors. Its union need only go over the points of each factor's own grid, Σ_I
    grid^|I|, which is far less.

    Args:
        points: Number of values, at least 1.
        delta: Probability that a bound fails, in (0, 1).

    Raises:
        ValueError: `points` is below 1, or `delta` lies outside (0, 1).

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> round(float(jaxbo.schedules.Confidence(points=100)(jnp.array(1))), 2)
        14.81
    """

    points: int | float = eqx.field(static=True)
    delta: Scalar = eqx.field(converter=named("delta"), default=0.1)

    def __check_init__(self):
        real = isinstance(self.points, Real) and self.points < math.inf
        require(real and self.points >= 1, f"points must be at least 1, got {self.points}.")
        require((self.delta > 0) & (self.delta < 1), f"delta must lie in (0, 1), got {self.delta}.")

    def __call__(self, t: Count) -> Scalar:
        # Both logarithms by themselves: the points of a domain overflow float32.
        size = math.log(self.points) + math.log(math.pi**2 / 6)
        return 2 * (size + 2 * jnp.log(t.astype(self.delta.dtype)) - jnp.log(self.delta))


class Continuous(AbstractSchedule):
    """The numbers βₜ = 2 log(4 F π² t² / 6δ) + 2 d log(d t² b r √log(4 F a / δ)) of DEC-HBO's Theorem 3.

    With it the sum of the factors' deviations bounds f (`UpperBound(joint=False)`) at every query and,
    up to 1/t², on [0, r]^d, for F factors. The condition is |f(x) - f(z)| ≤ L |x - z|₁ everywhere with
    probability 1 - a F exp(-L² / b²), for any L. The second logarithm is of the points of a grid along
    each axis, and no less than 0.

    Args:
        factors: F, at least 1.
        dim: d, at least 1.
        a: A positive number that depends on the kernel, with 4 F a > δ.
        b: A positive number that depends on the kernel, in deviations of the values, to which models
            are fitted.
        r: The width of the domain, which is 1 on the unit cube.
        delta: δ, the probability that a bound fails, in (0, 1).

    Raises:
        ValueError: A number is out of range, or `a` is so small that 4 F a ≤ δ.

    Example:
        >>> import jax.numpy as jnp, jaxbo
        >>> beta = jaxbo.schedules.Continuous(factors=3, dim=2, a=1.0, b=1.0)
        >>> bool(beta(jnp.array(2)) > beta(jnp.array(1)))
        True
    """

    factors: int = eqx.field(static=True)
    dim: int = eqx.field(static=True)
    a: Scalar = eqx.field(converter=named("a"))
    b: Scalar = eqx.field(converter=named("b"))
    r: Scalar = eqx.field(converter=named("r"), default=1.0)
    delta: Scalar = eqx.field(converter=named("delta"), default=0.1)

    def __check_init__(self):
        whole("factors", self.factors, least=1)
        whole("dim", self.dim, least=1)
        for name in ("a", "b", "r"):
            positive_number(name, getattr(self, name))
        require((self.delta > 0) & (self.delta < 1), f"delta must lie in (0, 1), got {self.delta}.")
        require(
            4 * self.factors * self.a > self.delta, f"a = {self.a} is too small for the theorem."
        )

    def __call__(self, t: Count) -> Scalar:
        each = Confidence(4 * self.factors, self.delta)(t)
        slope = self.b * self.r * jnp.sqrt(jnp.log(4 * self.factors * self.a / self.delta))
        cells = jnp.log(self.dim * slope) + 2 * jnp.log(t.astype(self.delta.dtype))
        return each + 2 * self.dim * jnp.maximum(cells, 0)


def _own(rounds: Scalar, exponent: Scalar | float) -> Scalar:
    return 1 - jnp.maximum(rounds, _FIRST) ** exponent


# ---------------------------------------------------------------- epochs of exploration


def explores(numbers: ArrayLike | Sequence[float]) -> np.ndarray:
    """Says in which rounds CEPE explores: if it has explored fewer than N_t times before (Algorithm 1).

    It is computed on the host. (Salgia, Vakili and Zhao, 2022: their section 3.1 says "at most N_t"
    once, their algorithm and their example "fewer".)

    Args:
        numbers: N_t for every round t = 1, 2, …, not decreasing.

    Returns:
        Whether each round explores.

    Raises:
        ValueError: The numbers decrease, are not finite, or do not even explore once.

    Example:
        >>> import jaxbo
        >>> jaxbo.schedules.explores([1.0, 1.0, 2.0, 2.0]).tolist()
        [True, False, True, False]
    """
    # On the host, also within a `jit`.
    numbers = about("numbers", lambda given: np.asarray(given, np.float64))(numbers)
    require(
        numbers.ndim == 1 and numbers.size > 0,
        f"numbers must be N_t for every round, got an array of shape {numbers.shape}.",
    )
    require(np.isfinite(numbers), "numbers N_t must be finite in every round; some are not.")
    falls = np.flatnonzero(np.diff(numbers) < 0)
    require(
        falls.size == 0,
        f"numbers N_t must not decrease, but do after round {falls[:1] + 1}: exploration that was made "
        "cannot be taken back.",
    )
    require(
        numbers[-1] > 0,
        f"numbers N_t end at {numbers[-1]}: with no round of exploration there is nothing to exploit.",
    )
    found, count = np.zeros(numbers.size, bool), 0
    for t, most in enumerate(numbers):
        found[t] = count < most
        count += int(found[t])
    return found


def growing(rounds: int, exponent: float = 2 / 3, scale: float = 1.0) -> np.ndarray:
    """N_t = scale t^exponent for every round: the example of CEPE's section 3.1.1.

    Args:
        rounds: Number of rounds, at least 1.
        exponent: The exponent, positive.
        scale: The factor, positive.

    Returns:
        N_t for every round, for `explores`.

    Raises:
        ValueError: A number is out of range.

    Example:
        >>> import jaxbo
        >>> jaxbo.schedules.growing(4, exponent=0.5).round(2).tolist()
        [1.0, 1.41, 1.73, 2.0]
    """
    whole("rounds", rounds, least=1)
    positive_number("exponent", exponent)
    positive_number("scale", scale)
    # A power of 2/3 that rounding puts above a whole number would add a round of exploration.
    return np.round(scale * np.arange(1.0, rounds + 1) ** exponent, 9)


def optimal(rounds: int, kappa: float, delta: float, scale: float = 1.0) -> np.ndarray:
    """N_t = scale t^(2 / (3 - κ)) log(t / δ)^(1/3) for every round: the order in Theorem 3.1 of CEPE.

    Args:
        rounds: Number of rounds, at least 1.
        kappa: κ in [0, 1]. The information gain of the kernel grows like t^κ. So κ is d / (2ν + d) for
            a Matern kernel of smoothness ν and, but for logarithms, 0 for the squared exponential.
        delta: δ in (0, 1).
        scale: The factor, positive. The theorem leaves it open.

    Returns:
        N_t for every round, for `explores`.

    Raises:
        ValueError: A number is out of range.

    Example:
        >>> import jaxbo
        >>> jaxbo.schedules.optimal(3, kappa=0.0, delta=0.1).round(2).tolist()
        [1.32, 2.29, 3.13]
    """
    whole("rounds", rounds, least=1)
    require(
        isinstance(kappa, Real) and 0 <= kappa <= 1,
        f"kappa must be a number in [0, 1], got {kappa!r}.",
    )
    require(
        isinstance(delta, Real) and 0 < delta < 1,
        f"delta must be a number between 0 and 1, got {delta!r}.",
    )
    positive_number("scale", scale)
    t = np.arange(1.0, rounds + 1)
    return growing(rounds, 2 / (3 - kappa), scale) * np.log(t / delta) ** (1 / 3)


def first(rounds: int) -> np.ndarray:
    """N_t with which the first rounds explore and no others, as in S-CEPE.

    Args:
        rounds: Number of rounds that explore, at least 1.

    Returns:
        N_t for these rounds, for `explores`.

    Raises:
        ValueError: `rounds` is less than 1.

    Example:
        >>> import jaxbo
        >>> jaxbo.schedules.first(2).tolist()
        [2.0, 2.0]
    """
    whole("rounds", rounds, least=1)
    return np.full(rounds, float(rounds))
