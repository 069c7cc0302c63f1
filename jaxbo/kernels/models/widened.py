"""A model whose samples lie farther from its mean, as the theorem of FTS has them.

    f ~ GP(μ, β_t² σ²),    β_t = B + σ √(2 (γ_{t-1} + 1 + log(4 / δ)))         (FTS, Algorithm 1)

The paper's experiments have β_t = 1, which is the model without this.
"""

from typing import Any, TypeAlias

import equinox as eqx

from jaxbo._beta import Beta, as_beta, beta_at, check_beta
from jaxbo._check import require
from jaxbo.kernels.models.fitted import Fitted
from jaxbo.kernels.models.surrogate import AbstractSurrogate, Fixed
from jaxbo.kernels.processes.features import FourierFunction
from jaxbo.types import Count, Function, Key, Point, Scalar

#: Models whose samples have a mean and a deviation at every point.
Gaussian: TypeAlias = Fixed | Fitted


class Widened(AbstractSurrogate):
    """A model whose samples have β_t times the deviation of its belief.

    Give it as `own` of `FTS` and `DPFTSDE`, or as the model of `TS`, for the β_t of their theorems.
    Mean, variance and messages stay those of the model. Here t is 1 more than the number of the
    agent's observations, those of the initial design included.

    Args:
        model: The model, `Fixed` or `Fitted`.
        beta: The factor β_t of the deviation, at least 0: a number, or a function of t.

    Raises:
        ValueError: `model` is of another class, or `beta` is below 0.

    Example:
        >>> import jax.numpy as jnp, jax.random as jr, jaxbo
        >>> model = jaxbo.Fixed(size=20)
        >>> wide, x = jaxbo.Widened(model, 3.0), jnp.array([0.2, 0.7])
        >>> shared = wide.setup(jr.key(0), dim=2)
        >>> one, three = (m.sample(jr.key(1), shared, m.start(shared)) for m in (model, wide))
        >>> round(float(three(x) / one(x)), 3)
        3.0
    """

    model: Gaussian
    beta: Beta = eqx.field(converter=as_beta)

    def __check_init__(self):
        require(
            isinstance(self.model, Gaussian),
            f"model must be Fixed(...) or Fitted(...), got {self.model!r:.60}.",
        )
        check_beta(self.beta)

    @property
    def capacity(self) -> int | None:
        """Returns the most observations that the model holds; None if there is no limit."""
        return self.model.capacity

    @property
    def period(self) -> int | None:
        return self.model.period

    @property
    def invariant(self) -> bool:
        return self.model.invariant

    def setup(self, key: Key, dim: int) -> Any:
        return self.model.setup(key, dim)

    def start(self, shared: Any) -> Any:
        return self.model.start(shared)

    def condition(self, shared: Any, belief: Any, x: Point, y: Scalar) -> Any:
        return self.model.condition(shared, belief, x, y)

    def refit(self, shared: Any, belief: Any) -> Any:
        return self.model.refit(shared, belief)

    def count(self, belief: Any) -> Count:
        return self.model.count(belief)

    def sample(self, key: Key, shared: Any, belief: Any) -> Function:
        drawn = self.model.sample(key, shared, belief)
        beta = beta_at(self.beta, self.count(belief) + 1)
        if isinstance(self.model, Fixed):
            assert isinstance(drawn, FourierFunction)
            mean = belief.mean_weights()
            wide = mean + beta.astype(mean.dtype) * (drawn.weights - mean)
            return FourierFunction(drawn.features, wide)

        def function(x: Point) -> Scalar:
            assert isinstance(self.model, Fitted)
            mean, _ = self.model.standardized(shared, belief, x)
            return mean + beta.astype(mean.dtype) * (drawn(x) - mean)

        return function

    def predict(self, shared: Any, belief: Any, x: Point) -> tuple[Scalar, Scalar]:
        return self.model.predict(shared, belief, x)

    def standard(self, belief: Any, y: Scalar) -> Scalar:
        return self.model.standard(belief, y)
