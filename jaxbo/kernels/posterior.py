"""The posterior of a linear model, as a mean and a square root of the covariance.

    y = φ'w + e,   w ~ N(0, I),   e ~ N(0, noise);      Cov(w) = R R'

One observation (Potter's square-root update):

    v = R'φ,   s = v'v + noise,   u = R v
    mean ← mean + u (y - φ'mean) / s
    R    ← R - u v' / (s + √(noise · s))

Then the variance at φ is |R'φ|², a sample of w is mean + R z, the predictive density of y is
N(φ'mean, s), and the log evidence is the running sum of its logarithms. There is no factorization, no
solve and no jitter: every division is by a number of at least `noise`, so float32 stays accurate down
to a noise of 1e-6 where forming Φ'Φ loses everything. O(features²) an observation.

The mean is linear in y and the covariance does not depend on y. So one root serves several outputs:
`mean` may have leading axes, with a value for each in `condition`.
"""

import abc
import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int

from jaxbo._check import positive, require
from jaxbo.kernels.linalg import dot
from jaxbo.types import Features, Flag, Key, Scalar, floating


class AbstractRoot(eqx.Module):
    """A square root R of the covariance of the weights, R = I at first."""

    @abc.abstractmethod
    def times(self, z: Features) -> Features:
        """R z."""

    @abc.abstractmethod
    def transpose_times(self, phi: Features) -> Features:
        """R'φ."""

    @abc.abstractmethod
    def has_room(self) -> Flag:
        """Whether another observation can be held."""

    @abc.abstractmethod
    def minus(self, u: Features, v: Features) -> "AbstractRoot":
        """R - u v'."""


class DenseRoot(AbstractRoot):
    """R itself."""

    matrix: Float[Array, "features features"]

    def times(self, z: Features) -> Features:
        return dot(self.matrix, z)

    def transpose_times(self, phi: Features) -> Features:
        return dot(phi, self.matrix)

    def has_room(self) -> Flag:
        return jnp.ones((), bool)

    def minus(self, u: Features, v: Features) -> "DenseRoot":
        return DenseRoot(self.matrix - u[:, None] * v[None, :])


class LowRankRoot(AbstractRoot):
    """R = I - U V' with one row of U and V an observation; unused rows are zero and need no mask.

    Only rows that are in use are read, so a round costs what the observations so far cost.
    """

    left: Float[Array, "capacity features"]
    right: Float[Array, "capacity features"]
    count: Int[Array, ""]

    def times(self, z: Features) -> Features:
        return self._reading(lambda left, right: z - dot(dot(right, z), left))

    def transpose_times(self, phi: Features) -> Features:
        return self._reading(lambda left, right: phi - dot(dot(left, phi), right))

    def has_room(self) -> Flag:
        return self.count < self.left.shape[0]

    def minus(self, u: Features, v: Features) -> "LowRankRoot":
        left = self.left.at[self.count].set(u, mode="drop")
        right = self.right.at[self.count].set(v, mode="drop")
        # A failed observation has u = v = 0: it need not take up a row.
        return LowRankRoot(left, right, self.count + jnp.any(v != 0).astype(int))

    def _reading(self, product: Callable[[Array, Array], Features]) -> Features:
        """`product` of the first rows of U and V, as many as hold all that are in use."""
        capacity = self.left.shape[0]
        sizes = [-(-capacity * step // _STEPS) for step in range(1, _STEPS + 1)]
        branches = [lambda n=n: product(self.left[:n], self.right[:n]) for n in sizes]
        smallest = jnp.sum(_largest_of_batch(self.count) > jnp.asarray(sizes[:-1]))
        return jax.lax.switch(smallest, branches)


# Rows are read in this many steps of the capacity: finer ones save less than they cost to compile.
_STEPS = 6


@jax.custom_batching.custom_vmap
def _largest_of_batch(count: Int[Array, ""]) -> Int[Array, ""]:
    """The count itself; under `vmap` the largest of the batch, common to all of it.

    Zero rows change nothing, so every member of a batch may read what the one with most needs. A
    common number keeps the choice of rows a branch, where one of its own would run all of them.
    """
    return count


@_largest_of_batch.def_vmap
def _(axis_size: int, in_batched: list[bool], count: Int[Array, " batch"]):
    del axis_size
    return _largest_of_batch(jnp.max(count) if in_batched[0] else count), False


class Posterior(eqx.Module):
    """Belief about the weights after `count` observations.

    `quadratic` and `log_det` are the running sums of r r'/s and log s over observations with residual r
    and predictive variance s: the two data-dependent terms of the log evidence.
    """

    mean: Float[Array, "*outputs features"]
    root: AbstractRoot
    noise: Scalar
    quadratic: Float[Array, "*outputs2"]
    log_det: Scalar
    count: Int[Array, ""]


def prior(
    size: int,
    noise: float | Scalar,
    *,
    outputs: tuple[int, ...] = (),
    capacity: int | None = None,
) -> Posterior:
    """No observations yet: w ~ N(0, I) for `size` features.

    `noise` is the variance of an observation's error, positive. `capacity`, if given, is the largest
    number of observations that will ever be made; when it is at most `size` the root is kept in
    low-rank form, which gives the same numbers for less, to a few roundings.

    Raises `ValueError` for a size or capacity below one or a noise that is not positive.
    """
    require(size >= 1, f"a linear model needs at least one feature, got {size}.")
    require(capacity is None or capacity >= 1, f"capacity must be at least 1, got {capacity}.")
    positive("noise", noise)
    noise = floating(noise)
    dtype = noise.dtype
    root: AbstractRoot
    if capacity is not None and capacity <= size:
        rows = jnp.zeros((capacity, size), dtype)
        root = LowRankRoot(rows, rows, jnp.zeros((), int))
    else:
        root = DenseRoot(jnp.eye(size, dtype=dtype))
    return Posterior(
        mean=jnp.zeros((*outputs, size), dtype),
        root=root,
        noise=noise,
        quadratic=jnp.zeros((*outputs, *outputs), dtype),
        log_det=jnp.zeros((), dtype),
        count=jnp.zeros((), int),
    )


def condition(posterior: Posterior, phi: Features, y: Float[Array, "*outputs"]) -> Posterior:
    """The posterior after one more observation `y` at features `phi`.

    An observation with a non-finite value leaves no mark: nothing changes, bit for bit. Nor does one
    beyond the capacity: callers see to it that there is none.
    """
    observed = jnp.all(jnp.isfinite(y)) & posterior.root.has_room()
    # With φ = 0 and residual 0 the update below adds zeros only.
    phi = jnp.where(observed, phi, jnp.zeros_like(phi))
    residual = jnp.where(observed, y - dot(posterior.mean, phi), jnp.zeros_like(y))
    v = posterior.root.transpose_times(phi)
    s = jnp.sum(v * v) + posterior.noise
    u = posterior.root.times(v)
    shrink = s + jnp.sqrt(posterior.noise * s)
    return Posterior(
        mean=posterior.mean + jnp.multiply.outer(residual, u / s),
        root=posterior.root.minus(u / shrink, v),
        noise=posterior.noise,
        quadratic=posterior.quadratic + jnp.multiply.outer(residual, residual) / s,
        log_det=posterior.log_det + jnp.where(observed, jnp.log(s), 0.0),
        count=posterior.count + observed.astype(int),
    )


def condition_all(
    posterior: Posterior,
    phis: Float[Array, "points features"],
    ys: Float[Array, " points *outputs"],
) -> Posterior:
    """`condition` on a batch of points, one after the other.

    A block update would need the Cholesky factor of Φ R R'Φ' + noise I, which float32 loses at small
    noise; the sequence of rank-one updates costs the same operations and keeps their accuracy.
    """
    step = lambda p, observation: (condition(p, *observation), None)  # noqa: E731
    return jax.lax.scan(step, posterior, (phis, ys))[0]


def predict(posterior: Posterior, phi: Features) -> tuple[Float[Array, "*outputs"], Scalar]:
    """Mean and variance of φ'w, without observation noise."""
    v = posterior.root.transpose_times(phi)
    return dot(posterior.mean, phi), jnp.sum(v * v)


def deviation(key: Key, posterior: Posterior) -> Features:
    """A draw of w minus its mean, R z: the same law for every output."""
    size = posterior.mean.shape[-1]
    return posterior.root.times(jr.normal(key, (size,), posterior.mean.dtype))


def sample(key: Key, posterior: Posterior) -> Features:
    """A draw of w from the posterior of a single output (FTS eq. 2)."""
    return posterior.mean + deviation(key, posterior)


def log_evidence(
    posterior: Posterior, combination: Float[Array, " outputs"] | None = None
) -> Scalar:
    """Log marginal likelihood of all observations so far, in nats.

    With several outputs, that of the values `combination` @ outputs: the evidence of any linear
    combination, such as standardized values, costs nothing.
    """
    quadratic = posterior.quadratic
    if combination is not None:
        quadratic = dot(combination, dot(quadratic, combination))
    constant = posterior.count.astype(posterior.log_det.dtype) * math.log(2 * math.pi)
    return -0.5 * (quadratic + posterior.log_det + constant)
