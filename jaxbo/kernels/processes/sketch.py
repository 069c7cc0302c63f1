"""Which of an agent's observations are the inducing points of its sketch: a part of S-CEPE.

Sketch    each by itself, with probability q₀ variance(x)      (Salgia, Vakili and Zhao, 2022)
Pivoted   a given number of them, by pivoted Cholesky
"""

import abc

import equinox as eqx
from jaxtyping import Array, Float

from jaxbo._check import positive_number, whole
from jaxbo._extensible import Extensible
from jaxbo.kernels.processes import nystrom
from jaxbo.kernels.processes.covariance import Covariance
from jaxbo.kernels.processes.nystrom import Inducing
from jaxbo.types import Key, Points, Scalar, named


class AbstractSketch(Extensible):
    """Chooses inducing points among observations.

    With `exact` an agent uses its own mean where the paper has its sketch of it: it costs nothing.
    In the average of all, where it counts like any other, there is still the sketch.
    """

    exact: eqx.AbstractVar[bool]

    @abc.abstractmethod
    def size(self, observations: int) -> int:
        """Bounds the number of inducing points.

        Args:
            observations: Number of observations.

        Returns:
            The most that there may be.
        """

    @abc.abstractmethod
    def draw(
        self, key: Key, kernel: Covariance, x: Points, variance: Float[Array, " points"]
    ) -> Inducing:
        """Draws inducing points among observations.

        Args:
            key: Random key.
            kernel: The kernel of the process.
            x: The points.
            variance: The posterior variance at each point; 0 if it is no observation.

        Returns:
            The inducing points.
        """


class Sketch(AbstractSketch):
    """An observation x becomes an inducing point with probability `q0` variance(x) (Algorithm 2).

    Args:
        q0: The factor of the variance, above 0. In the paper it is 6 (1 + ε) / (1 - ε) log(8 T K /
            δ) / ε².
        exact: Whether an agent uses its own exact mean where the paper has its sketch, which costs
            nothing. In the average of all agents there is still the sketch. Default: False.

    Raises:
        ValueError: `q0` is not positive.

    Example:
        >>> import jaxbo
        >>> sketch = jaxbo.Sketch(q0=2.0)
        >>> sketch.size(observations=30)
        30
        >>> method = jaxbo.CEPE(jaxbo.Cube(2), 4, jaxbo.schedules.first(30), sketch=sketch)
    """

    q0: Scalar = eqx.field(converter=named("q0"))
    exact: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        positive_number("q0", self.q0)

    def size(self, observations: int) -> int:
        return observations

    def draw(
        self, key: Key, kernel: Covariance, x: Points, variance: Float[Array, " points"]
    ) -> Inducing:
        del kernel, x
        return nystrom.draw(key, self.q0 * variance)


class Pivoted(AbstractSketch):
    """A fixed number of observations become inducing points, by pivoted Cholesky.

    Beyond the paper: how many is known in advance, and so is the time it takes to send them.

    Args:
        count: Number of inducing points, at least 1.
        select: The rule for the next pivot, `nystrom.greedy` or `nystrom.random`. Default:
            `nystrom.greedy`.
        exact: Whether an agent uses its own exact mean where the paper has its sketch, which costs
            nothing. In the average of all agents there is still the sketch. Default: False.

    Raises:
        ValueError: `count` is below 1.

    Example:
        >>> import jaxbo
        >>> sketch = jaxbo.Pivoted(count=10)
        >>> sketch.size(observations=30), sketch.size(observations=5)
        (10, 5)
        >>> method = jaxbo.CEPE(jaxbo.Cube(2), 4, jaxbo.schedules.first(30), sketch=sketch)
    """

    count: int = eqx.field(static=True)
    select: nystrom.Selector = eqx.field(static=True, default=nystrom.greedy)
    exact: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        whole("count", self.count, least=1)

    def size(self, observations: int) -> int:
        return min(self.count, observations)

    def draw(
        self, key: Key, kernel: Covariance, x: Points, variance: Float[Array, " points"]
    ) -> Inducing:
        chosen = self.select(key, kernel, x, self.size(x.shape[0]), variance > 0)
        return Inducing(chosen.indices, chosen.count)
