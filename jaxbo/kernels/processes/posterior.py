"""The posterior of a linear model, as a mean and a square root of the covariance.

    y = φ'w + e,   w ~ N(0, I),   e ~ N(0, noise);      Cov(w) = R R'

A single observation (Potter's square-root update):

    v = R'φ,   s = v'v + noise,   u = R v
    mean ← mean + u (y - φ'mean) / s
    R    ← R - u v' / (s + √(noise · s))

Then the variance at φ is |R'φ|², a sample of w is mean + R z, the predictive density of y is
N(φ'mean, s), and the log evidence is the running sum of its logarithms. There is no factorization, no
solve and no jitter: every division is by a number of at least `noise`, so float32 stays accurate down
to a noise of 1e-6 where forming Φ'Φ loses everything. O(features²) an observation.

The mean is linear in y and the covariance does not depend on y. So a single root serves several
outputs: `mean` may have leading axes, with a value for each in `condition`.

On accelerators both forms of the root have kernels (`accelerated.roots`) for many agents at once.
"""

import abc
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int

from jaxbo._check import positive, require
from jaxbo.kernels.accelerated import choice, roots
from jaxbo.kernels.linalg import dot, inner
from jaxbo.types import Features, Flag, Key, Scalar, floating


class Told(NamedTuple):
    """A root after a further observation, and u and s of its update."""

    root: "AbstractRoot"
    u: Features
    s: Scalar


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
    def contracted(self, v: Features, u: Features, shrink: Scalar) -> "AbstractRoot":
        """R (I - v v' / shrink) = R - u v' / shrink, where u = R v."""

    @abc.abstractmethod
    def told(self, phi: Features, noise: Scalar) -> Told:
        """The root after an observation at φ."""


class DenseRoot(AbstractRoot):
    """R itself."""

    matrix: Float[Array, "features features"]

    def times(self, z: Features) -> Features:
        return dot(self.matrix, z)

    def transpose_times(self, phi: Features) -> Features:
        return dot(phi, self.matrix)

    def has_room(self) -> Flag:
        return jnp.ones((), bool)

    def contracted(self, v: Features, u: Features, shrink: Scalar) -> "DenseRoot":
        return DenseRoot(self.matrix - (u / shrink)[:, None] * v[None, :])

    def told(self, phi: Features, noise: Scalar) -> Told:
        if phi.size > roots.LARGEST or not choice.of_32_bits(self.matrix, phi):
            matrix, u, s = _dense_told(self.matrix, phi, noise)
            return Told(DenseRoot(matrix), u, s)

        def of_one(_: Any, matrix: Array, observation: tuple[Features, Scalar]) -> Any:
            return _dense_told(matrix, *observation)

        def of_all(_: Any, matrix: Array, observations: Any, *, interpret: bool) -> Any:
            return roots.told(matrix, *observations, interpret=interpret)

        matrix, u, s = choice.chosen(
            lambda: _dense_told(self.matrix, phi, noise),
            lambda interpret: choice.mapped(of_one, of_all, interpret)(
                (), self.matrix, (phi, noise)
            ),
        )
        return Told(DenseRoot(matrix), u, s)


class ProductRoot(AbstractRoot):
    """R = (I - v₁v₁'/shrink₁) (I - v₂v₂'/shrink₂) …, with a vector v for each observation.

    O(observations so far · features) an operation. The factors are applied in turn, which is as
    accurate as the matrix: their sum, I - U V', would cancel. Unused rows are zero: factors of I.
    Differentiable in reverse, and forward over reverse, in the features but not in the root.
    """

    rows: Float[Array, "capacity features"]
    inverse_shrinks: Float[Array, " capacity"]
    count: Int[Array, ""]

    def times(self, z: Features) -> Features:
        return _last_to_first(self, z)

    def transpose_times(self, phi: Features) -> Features:
        return _first_to_last(self, phi)

    def has_room(self) -> Flag:
        return self.count < self.rows.shape[0]

    def contracted(self, v: Features, u: Features, shrink: Scalar) -> "ProductRoot":
        # False, but not to the compiler: it cannot write the row before it has u, so while u is being
        # computed the old rows are needed by nothing else and it makes no copy of all of them.
        never = jnp.isnan(u[0]) & (u[0] == 0)
        # A failed observation has v = 0: it takes up no row and changes no bit. Nor does a row too many.
        held = jnp.any(v != 0) & self.has_room()
        row = jnp.where(held & ~never, self.count, self.rows.shape[0])
        return ProductRoot(
            self.rows.at[row].set(v, mode="drop"),
            self.inverse_shrinks.at[row].set(1 / shrink, mode="drop"),
            self.count + held.astype(int),
        )

    def told(self, phi: Features, noise: Scalar) -> Told:
        v, u = _by_kernel(_there_and_back, self, phi, ascending=True, descending=True)
        s, shrink = _divisors(v, noise)
        return Told(self.contracted(v, u, shrink), u, s)


def _dense_told(
    matrix: Float[Array, "features features"], phi: Features, noise: Scalar
) -> tuple[Float[Array, "features features"], Features, Scalar]:
    """The matrix of the root after an observation, u and s."""
    v, u = _there_and_back(DenseRoot(matrix), phi)
    s, shrink = _divisors(v, noise)
    return DenseRoot(matrix).contracted(v, u, shrink).matrix, u, s


def _there_and_back(root: AbstractRoot, phi: Features) -> tuple[Features, Features]:
    """v = R'φ and u = R v."""
    v = root.transpose_times(phi)
    return v, root.times(v)


def _divisors(v: Features, noise: Scalar) -> tuple[Scalar, Scalar]:
    """s, and the divisor of the root's update."""
    s = inner(v, v) + noise
    return s, s + jnp.sqrt(noise * s)


@jax.custom_batching.custom_vmap
def largest_of_batch(count: Int[Array, ""]) -> Int[Array, ""]:
    """The count itself; under `vmap` the largest of the batch, common to all of it.

    Zero rows change nothing, so every member of a batch may use as many as the member with most
    needs, and a loop of common length need not ask each member whether it has ended.
    """
    return count


@largest_of_batch.def_vmap
def _(axis_size: int, in_batched: list[bool], count: Int[Array, " batch"]):
    del axis_size
    return largest_of_batch(jnp.max(count) if in_batched[0] else count), False


# A loop whose length depends on data has no reverse derivative of its own; that of a product of
# matrices is the product of their transposes, in the other order.


@jax.custom_vjp
def _first_to_last(root: ProductRoot, z: Features) -> Features:
    """R'z."""
    return _ascending(root, z)


@jax.custom_vjp
def _last_to_first(root: ProductRoot, z: Features) -> Features:
    """R z."""
    return _descending(root, z)


_first_to_last.defvjp(
    lambda root, z: (_ascending(root, z), root), lambda root, d: (None, _descending(root, d))
)
_last_to_first.defvjp(
    lambda root, z: (_descending(root, z), root), lambda root, d: (None, _ascending(root, d))
)


def _ascending(root: ProductRoot, z: Features) -> Features:
    return _by_kernel(_first_to_last_in_turn, root, z, ascending=True, descending=False)[0]


def _descending(root: ProductRoot, z: Features) -> Features:
    return _by_kernel(_last_to_first_in_turn, root, z, ascending=False, descending=True)[0]


def _by_kernel(
    plain: Callable[[ProductRoot, Features], tuple[Features, ...]],
    root: ProductRoot,
    z: Features,
    *,
    ascending: bool,
    descending: bool,
) -> tuple[Features, ...]:
    """`plain` of root and z, or the kernel for it (`roots.through`) in programs that hold it."""
    if z.size > roots.LARGEST_FACTOR or not choice.of_32_bits(root.rows, z):
        return plain(root, z)

    def of_one(_: Any, root: ProductRoot, z: Features) -> tuple[Features, ...]:
        return plain(root, z)

    def of_all(_: Any, root: Any, z: Any, *, interpret: bool) -> Any:
        arrays = root.rows, root.inverse_shrinks, root.count, z
        return roots.through(
            *arrays, ascending=ascending, descending=descending, interpret=interpret
        )

    return choice.chosen(
        lambda: plain(root, z),
        lambda interpret: choice.mapped(of_one, of_all, interpret)((), root, z),
    )


def _first_to_last_in_turn(root: ProductRoot, z: Features) -> tuple[Features]:
    count = largest_of_batch(root.count)
    return (jax.lax.fori_loop(0, count, lambda k, z: _factor(root, k, z), z),)


def _last_to_first_in_turn(root: ProductRoot, z: Features) -> tuple[Features]:
    count = largest_of_batch(root.count)
    return (jax.lax.fori_loop(0, count, lambda k, z: _factor(root, count - 1 - k, z), z),)


def _factor(root: ProductRoot, k: Int[Array, ""], z: Features) -> Features:
    """(I - v v' / shrink) z for observation k."""
    v, inverse = _row(root.rows, k), _row(root.inverse_shrinks, k)
    return z - v * (inner(v, z) * inverse)


def _row(table: Float[Array, " capacity *rest"], k: Int[Array, ""]) -> Float[Array, "*rest"]:
    # Plain indexing would make a gather of it.
    return jax.lax.dynamic_index_in_dim(table, k, keepdims=False)


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
    number of observations that will ever be made; when it is at most `size` the root is kept as
    a product of as many factors, which gives the same numbers for less.

    Raises `ValueError` for a size or capacity below 1 or a noise that is not positive.
    """
    require(size >= 1, f"a linear model needs at least one feature, got {size}.")
    require(capacity is None or capacity >= 1, f"capacity must be at least 1, got {capacity}.")
    positive("noise", noise)
    noise = floating(noise)
    dtype = noise.dtype
    root: AbstractRoot
    if capacity is not None and capacity <= size:
        rows = jnp.zeros((capacity, size), dtype)
        root = ProductRoot(rows, jnp.ones((capacity,), dtype), jnp.zeros((), int))
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
    """The posterior after a further observation `y` at features `phi`.

    An observation with a non-finite value leaves no mark: nothing changes, bit for bit. An
    observation beyond the capacity changes nothing either: callers see to it that there is none.
    """
    _check_fits(posterior, phi)
    expected = posterior.mean.shape[:-1]
    require(
        jnp.shape(y) == expected,
        f"y must have shape {expected}, a value of each output, got {jnp.shape(y)}.",
    )
    observed = jnp.all(jnp.isfinite(y)) & posterior.root.has_room()
    # With φ = 0 and residual 0 the update below adds zeros only.
    phi = jnp.where(observed, phi, jnp.zeros_like(phi))
    residual = jnp.where(observed, y - dot(posterior.mean, phi), jnp.zeros_like(y))
    root, u, s = posterior.root.told(phi, posterior.noise)
    return Posterior(
        mean=posterior.mean + jnp.multiply.outer(residual, u / s),
        root=root,
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
    """`condition` on a batch of points, in turn.

    A block update would need the Cholesky factor of Φ R R'Φ' + noise I, which float32 loses at
    small noise; the sequence of rank-1 updates costs the same operations and keeps their accuracy.
    """
    step = lambda p, observation: (condition(p, *observation), None)  # noqa: E731
    return jax.lax.scan(step, posterior, (phis, ys))[0]


def predict(posterior: Posterior, phi: Features) -> tuple[Float[Array, "*outputs"], Scalar]:
    """Mean and variance of φ'w, without observation noise."""
    _check_fits(posterior, phi)
    v = posterior.root.transpose_times(phi)
    return dot(posterior.mean, phi), inner(v, v)


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


def _check_fits(posterior: Posterior, phi: Features) -> None:
    """`ValueError` for features of another size than the model's."""
    expected = posterior.mean.shape[-1:]
    require(
        jnp.shape(phi) == expected,
        f"phi must have shape {expected}, the features of one point, got {jnp.shape(phi)}: use jax.vmap "
        "for several points, and `condition_all` for several observations.",
    )
