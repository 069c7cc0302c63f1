"""Nystrom features: a process as far as it follows from its values at a few inducing points z₁ … z_m.

    φ(x) = L⁻¹ k(z, x),   L L' = k(z, z)         k(x, x') ≈ φ(x)'φ(x')
    f(x) = φ(x)'w + rest,   w ~ N(0, I),   rest ~ N(0, k(x, x) - |φ(x)|²)

Conditioned on y = φ(x)'w + e, e ~ N(0, noise), by the square root of `processes.posterior`, this is the
sketched posterior of S-CEPE (Salgia, Vakili and Zhao, 2022, eq. 6, 7):

    mean(x)     = φ(x)'ŵ = k(z, x)'(noise K_zz + K_zx K_xz)⁻¹ K_zx y
    variance(x) = k(x, x) - |φ(x)|² + |R'φ(x)|²,   noise times what eq. 7 prints, so that with every
                  observation inducing it is the exact variance (eq. 5)

K_zz + noise⁻¹ K_zx K_xz is never formed, and L is found by pivoting: a point whose value follows
from earlier points, to within rounding, gets no feature. Float32 against float64, 150 observations
of variance 1 at noise 1e-2: the mean errs by 2e-5 where inducing points are apart (60 of them,
squared exponential kernel of length scale 0.1 in two dimensions), by 2e-2 where they are crowded
(length scales 0.2 and 0.5), which is a tenth of the deviation there. Use float64 where that
matters.

Which points: `draw`, each observation by itself with probability q₀ σ²(x) (Algorithm 2); `greedy`,
always the point of the largest remaining variance; `random`, a point drawn in proportion to it
(randomly pivoted Cholesky; Chen, Epperly, Tropp and Webber, 2022). Root mean square difference from
the exact mean with 20 / 40 / 80 of 300 observations (length scale 0.2 in two dimensions, noise
1e-2, median of 16 sets): greedy 0.062 / 0.022 / 0.0007, random 0.071 / 0.020 / 0.0009, draw 0.098 /
0.026 / 0.0020.
"""

from collections.abc import Callable
from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int

from jaxbo._check import positive, positive_number, require, whole
from jaxbo.domains.base import Cube, Regions
from jaxbo.kernels.linalg import dot, inverse_lower
from jaxbo.kernels.processes import posterior
from jaxbo.kernels.processes.covariance import AbstractKernel, Covariance
from jaxbo.kernels.processes.posterior import Posterior
from jaxbo.types import Count, Features, Key, Point, Points, Scalar, as_pytree

#: A pivot's least variance, in units of the kernel's and of its precision. At 1/4 rounding can leave
#: nothing but itself, and NaN follows; with 16 the mean errs by up to five times as much as with 4, since
#: a feature that is left out is as large as any other away from the points.
_ROUNDING = 4

#: Picks a point given its number in the order and what variance is left at every point.
Pick: TypeAlias = Callable[[Count, Float[Array, " points"]], Count]

#: `greedy` or `random`: (key, kernel, points, size, used) picks `size` of the points that are used.
Selector: TypeAlias = Callable[..., "Selection"]


class Selection(eqx.Module):
    """Points by their `indices`, the first `count` of them; the others repeat the first.

    `rows` is the partial Cholesky factor in that order: k(x, x') ≈ rows[:, x]'rows[:, x'], with zero rows
    beyond `count`, and `residual` is the variance left at every point.
    """

    indices: Int[Array, " size"]
    rows: Float[Array, "size points"]
    residual: Float[Array, " points"]
    count: Count


def greedy(
    key: Key,
    kernel: Covariance,
    points: Points,
    size: int,
    used: Bool[Array, " points"] | None = None,
) -> Selection:
    """Picks points by pivoted Cholesky, each where the earlier points leave the most variance.

    It takes O(size² points), and O(size points) of memory: the matrix of all pairs is never formed.
    It is deterministic, but for ties: the first is any point.

    Args:
        key: Random key.
        kernel: The kernel of the process.
        points: The points to pick from.
        size: Number of points to pick, at least 1. Fewer are picked if nothing but rounding is
            left.
        used: Whether each point may be picked. None: all may.

    Returns:
        The picked points.
    """
    used = _all(points) if used is None else used
    first = jr.categorical(key, jnp.where(used, 0.0, -jnp.inf))

    def pick(k: Count, residual: Float[Array, " points"]) -> Count:
        return jnp.where(k == 0, first, jnp.argmax(residual))

    return _pivots(pick, kernel, points, used, size)


def random(
    key: Key,
    kernel: Covariance,
    points: Points,
    size: int,
    used: Bool[Array, " points"] | None = None,
) -> Selection:
    """Picks points by randomly pivoted Cholesky, each in proportion to the variance left at it.

    Args:
        key: Random key.
        kernel: The kernel of the process.
        points: The points to pick from.
        size: Number of points to pick, at least 1. Fewer are picked if nothing but rounding is
            left.
        used: Whether each point may be picked. None: all may.

    Returns:
        The picked points.
    """

    def pick(k: Count, residual: Float[Array, " points"]) -> Count:
        return jr.categorical(jr.fold_in(key, k), jnp.log(residual))

    return _pivots(pick, kernel, points, _all(points) if used is None else used, size)


def _all(points: Points) -> Bool[Array, " points"]:
    return jnp.ones(points.shape[:1], bool)


def _pivots(
    pick: Pick, kernel: Covariance, points: Points, used: Bool[Array, " points"], size: int
) -> Selection:
    whole("size", size, least=1)
    prior = jnp.where(used, jax.vmap(lambda x: kernel(x, x))(points), 0)
    floor = _ROUNDING * jnp.finfo(prior.dtype).eps * jnp.max(prior)

    def step(k: Count, chosen: Selection) -> Selection:
        rows, residual = chosen.rows, chosen.residual
        i = pick(k, residual).astype(int)
        variance = residual[i]
        fresh = variance > floor
        x = points[i]
        column = jax.vmap(lambda z: kernel(x, z))(points) - dot(rows[:, i], rows)
        row = column / jnp.sqrt(jnp.where(fresh, variance, 1))
        row = jnp.where(fresh & used, row, 0)
        # What is left at a pivot is nothing; elsewhere |row|² is at most what there was.
        residual = jnp.maximum(residual - row**2, 0).at[i].set(0)
        residual = jnp.where(fresh, residual, chosen.residual)
        at = jnp.where(fresh, chosen.count, size)
        return Selection(
            chosen.indices.at[at].set(i, mode="drop"),
            rows.at[at].set(row, mode="drop"),
            residual,
            chosen.count + fresh.astype(int),
        )

    zero = jnp.zeros((), int)
    rows = jnp.zeros((size, points.shape[0]), prior.dtype)
    chosen = Selection(jnp.zeros((size,), int), rows, prior, zero)
    chosen = jax.lax.fori_loop(0, size, step, chosen)
    slots = jnp.arange(size)
    indices = jnp.where(slots < chosen.count, chosen.indices, chosen.indices[0])
    return Selection(indices, chosen.rows, chosen.residual, chosen.count)


# ---------------------------------------------------------------- a random set


class Inducing(eqx.Module):
    """Points by their `indices`, of which the first `count` are meant."""

    indices: Int[Array, " capacity"]
    count: Count


def draw(key: Key, probabilities: Float[Array, " points"], capacity: int | None = None) -> Inducing:
    """Every point by itself with its probability (Algorithm 2); above 1 counts as 1, and NaN as 0.

    The buffer holds all points unless `capacity` says otherwise. If more are drawn than it holds, the
    run stops with an error: a part of the set would be a sketch of something else.
    """
    points = probabilities.shape[0]
    capacity = points if capacity is None else capacity
    whole("capacity", capacity, least=1)
    # Of two numbers in [0, 1) the first is below a probability of 1 always, of 0 never.
    chosen = jr.uniform(key, (points,), probabilities.dtype) < probabilities
    count = jnp.sum(chosen, dtype=int)
    if capacity < points:
        count = eqx.error_if(
            count,
            count > capacity,
            f"more inducing points were drawn than a buffer of {capacity} holds: give more, or lower q0.",
        )
    order = jnp.argsort(~chosen, stable=True)
    order = jnp.concatenate([order, jnp.zeros((max(capacity - points, 0),), order.dtype)])
    return Inducing(order[:capacity].astype(int), count)


# ---------------------------------------------------------------- features


class Nystrom(eqx.Module):
    """φ(x) = L⁻¹ k(z, x) for the first `count` of the points z; made by `feature_map`.

    `kernel` is any k(x, z). |φ(x)|² ≤ k(x, x): the rest is variance that the features lack.
    """

    kernel: Covariance = eqx.field(converter=as_pytree)
    z: Float[Array, "features dim"]
    inverse: Float[Array, "features features"]
    count: Count

    @property
    def size(self) -> int:
        """Number of features; features beyond `count` are 0."""
        return self.z.shape[0]

    @property
    def dim(self) -> int:
        """Coordinates of a point."""
        return self.z.shape[1]

    def __call__(self, x: Point) -> Features:
        return dot(self.inverse, self.covariances(x))

    def covariances(self, x: Point) -> Features:
        """k(z, x), 0 beyond `count`."""
        k = jax.vmap(lambda z: self.kernel(z, x))(self.z.astype(x.dtype))
        return jnp.where(jnp.arange(self.size) < self.count, k, 0)


def feature_map(
    kernel: Covariance, z: Points, used: Bool[Array, " points"] | None = None
) -> Nystrom:
    """The features of the points z that are `used`, in the order of pivoting.

    Points that follow from others to within rounding, such as repeated points, are left out.
    """
    used = _all(z) if used is None else used
    size = z.shape[0]
    chosen = _pivots(lambda k, residual: jnp.argmax(residual), kernel, z, used, size)
    slots = jnp.arange(size)
    held = slots < chosen.count
    L = chosen.rows[:, chosen.indices].T
    L = jnp.where(held[:, None] & held[None, :], L, jnp.eye(size, dtype=L.dtype))
    return Nystrom(kernel, z[chosen.indices], inverse_lower(L), chosen.count)


def basis(selector: Selector = greedy, candidates: int = 1000) -> Callable[..., Nystrom]:
    """A basis for `Fixed`, like `features.sine_cosine`: inducing points among points that cover the cube.

    Unlike Fourier features they have a variance of their own nowhere but near their points: a model
    on them is as sure of the rest as of the points it has seen. If the kernel is smooth, a few are
    exact.
    """
    whole("candidates", candidates, least=1)

    def of_cube(key: Key, kernel: Covariance, dim: int, size: int) -> Nystrom:
        require(size >= 1 and dim >= 1, f"features need size and dim >= 1, got {size} and {dim}.")
        if isinstance(kernel, AbstractKernel):
            positive("length_scale", kernel.length_scale)
        candidate_key, key = jr.split(key)
        points = Cube(dim).candidates(candidate_key, max(candidates, size))
        chosen = selector(key, kernel, points, size)
        return feature_map(kernel, points[chosen.indices], jnp.arange(size) < chosen.count)

    return of_cube


# ---------------------------------------------------------------- the sketched posterior


def condition(
    phi: Nystrom, noise: Scalar | float, x: Points, y: Float[Array, " points"]
) -> Posterior:
    """Belief about the features' weights given observations; NaN values are none.

    `noise` is the variance of their error. O(size²) an observation.
    """
    positive_number("noise", noise)
    start = posterior.prior(phi.size, jnp.asarray(noise, y.dtype))
    return posterior.condition_all(start, jax.vmap(phi)(x), y)


def predict(phi: Nystrom, belief: Posterior, x: Point) -> tuple[Scalar, Scalar]:
    """Mean and variance of f(x), without noise (eq. 6; `noise` times eq. 7)."""
    features = phi(x)
    mean, variance = posterior.predict(belief, features)
    rest = phi.kernel(x, x) - jnp.sum(features**2)
    return mean, jnp.maximum(rest, 0) + variance


def weights(phi: Nystrom, belief: Posterior) -> Features:
    """w with mean(x) = k(z, x)'w: a client of S-CEPE sends it with its inducing points."""
    return dot(belief.mean, phi.inverse)


# ---------------------------------------------------------------- over sub-regions


def split(
    regions: Regions,
    x: Points,
    y: Float[Array, " points"],
    capacity: int,
    margin: Scalar | float = 0.0,
) -> tuple[Float[Array, "regions capacity dim"], Float[Array, "regions capacity"]]:
    """The observations in each region, and up to `margin` beyond it along every axis; NaN is none.

    If a domain is many length scales wide, a sketch for each region, under a `vmap` over regions,
    needs far fewer inducing points apiece than a common sketch. A margin of two or three length
    scales hides the borders. If a region has more observations than `capacity`, the run stops with an
    error.
    """
    whole("capacity", capacity, least=1)
    index = jnp.arange(regions.count)

    def within(region: Count) -> Bool[Array, " points"]:
        lower, upper = regions.box(region, x.dtype)
        inside = (x >= (lower - margin)[None, :]) & (x <= (upper + margin)[None, :])
        return jnp.all(inside, axis=1) & jnp.isfinite(y)

    held = jax.vmap(within)(index)
    held = eqx.error_if(
        held,
        jnp.sum(held, axis=1) > capacity,
        f"a region has more than {capacity} observations: give more, or cut finer.",
    )
    order = jnp.argsort(~held, axis=1, stable=True)
    order = jnp.pad(order, ((0, 0), (0, max(capacity - y.shape[0], 0))))[:, :capacity]
    slots = jnp.arange(capacity)[None, :]
    return x[order], jnp.where(slots < jnp.sum(held, axis=1, keepdims=True), y[order], jnp.nan)
