"""Exact processes that are explored where their variance is largest, and whose means are added up.

    x_n = argmax variance(x | x_1 … x_{n-1})
    pivot² = variance(x_n) + noise,   d_n(x) = covariance(x, x_n) / pivot       given x_1 … x_{n-1}
    mean ← mean + d_n (y_n - mean(x_n)) / pivot
    variance ← variance - d_n²

Variance does not depend on values, so processes with the same kernel and noise explore the same
points: their `Design` is common, and of each process only its mean is kept (`Answers`). If an
evaluation of the design failed, the process goes on as if it had observed its own mean there.
Processes with kernels of their own, or that know other points, keep their own (`OverPoints` on a
finite domain, `Grown` elsewhere).

A mean is held by numbers in which it is linear: its values at all points of a finite domain, or weights
of k(·, x_n) for the points of a design. Elsewhere it is an `Expansion`.
"""

import abc
from collections.abc import Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxbo.domains.base import AbstractDomain, Finite
from jaxbo.kernels import linalg
from jaxbo.kernels.choosing import failures
from jaxbo.kernels.choosing.history import History
from jaxbo.kernels.choosing.maximize import any_largest, maximize
from jaxbo.kernels.linalg import dot
from jaxbo.kernels.processes import gp
from jaxbo.kernels.processes.covariance import Covariance
from jaxbo.kernels.processes.gp import GP
from jaxbo.types import Count, Flag, Function, Key, Point, Points, Scalar, as_pytree

#: A mean: an array of coordinates that processes have in common, or an `Expansion` of its own.
Mean: TypeAlias = Any

#: Means, each with a factor.
Terms: TypeAlias = Sequence[tuple[Scalar, Any]]


class Expansion(eqx.Module):
    """Σ weights_n k(x, x_n), or the sum of such sums where there is an axis of them."""

    kernel: Covariance = eqx.field(converter=as_pytree)
    x: Float[Array, "*agents points dim"]
    weights: Float[Array, "*agents points"]

    def __call__(self, x: Point) -> Scalar:
        if self.weights.ndim > 1:
            return jnp.sum(jax.vmap(lambda one: one(x))(self))
        return dot(self.weights, jax.vmap(lambda z: self.kernel(z, x))(self.x))


def total(means: Any, weights: Float[Array, " agents"]) -> Any:
    """Σ weights_j mean_j of means with an agents axis."""
    if isinstance(means, Expansion):
        return Expansion(means.kernel, means.x, weights[:, None] * means.weights)
    return dot(weights, means)


# ---------------------------------------------------------------- on finitely many points


class OverPoints(eqx.Module):
    """Mean and variance at all points of a finite domain, and the n-th observation's d_n in row n."""

    kernel: Covariance = eqx.field(converter=as_pytree)
    noise: Scalar
    mean: Float[Array, " points"]
    variance: Float[Array, " points"]
    rows: Float[Array, "capacity points"]
    count: Count


def table(kernel: Covariance, noise: Scalar, points: Points, capacity: int) -> OverPoints:
    """Nothing observed yet, and room for `capacity` observations."""
    prior = jax.vmap(lambda x: kernel(x, x))(points)
    rows = jnp.zeros((capacity, points.shape[0]), prior.dtype)
    noise = noise.astype(prior.dtype)
    return OverPoints(kernel, noise, jnp.zeros_like(prior), prior, rows, jnp.zeros((), int))


def observed(belief: OverPoints, points: Points, i: Count, y: Scalar) -> OverPoints:
    """The table given a value at point number i; O(capacity points).

    A value that is not finite, or beyond the capacity, leaves everything as it was, bit for bit.
    """
    capacity = belief.rows.shape[0]
    accepted = jnp.isfinite(y) & (belief.count < capacity)
    x = points[i]
    prior = belief.kernel(x, x)
    k = jax.vmap(lambda z: belief.kernel(x, z))(points)
    pivot = jnp.sqrt(belief.variance[i] + belief.noise)
    # |cov(x, z)|² ≤ variance(x) variance(z), which rounding must not exceed.
    bound = jnp.sqrt(belief.variance)
    row = jnp.clip((k - dot(belief.rows[:, i], belief.rows)) / pivot, -bound, bound)
    least = gp.least_variance(prior, belief.noise, belief.count + 1)
    mean = belief.mean + row * ((y - belief.mean[i]) / pivot)
    variance = jnp.maximum(belief.variance - row**2, jnp.minimum(least, belief.variance))
    slot = jnp.where(accepted, belief.count, capacity)
    return OverPoints(
        belief.kernel,
        belief.noise,
        jnp.where(accepted, mean, belief.mean),
        jnp.where(accepted, variance, belief.variance),
        belief.rows.at[slot].set(row, mode="drop"),
        belief.count + accepted.astype(int),
    )


def nearest(points: Points, x: Point) -> Count:
    """The number of the point that x is, the first of equals."""
    return jnp.argmin(jnp.sum((points - x[None, :]) ** 2, axis=1)).astype(int)


def safe(past: History, points: Points, values: Float[Array, " points"]) -> Float[Array, " points"]:
    """The values of all points, so that a point where evaluations succeed is better than all others."""
    return failures.preferred(failures.limits(past, points).allowed, values)


# ---------------------------------------------------------------- points that all explore


class Design(eqx.Module):
    """The points explored so far, in order, and how a mean changes with the value at each.

    On coordinates c of a mean, `readings[n]`'c is its value at x[n], or c[at[n]] on a finite domain,
    where there are no readings; `changes[n]` is d_n: row n of `inverse`, or there of the table. `process`
    has observed 0 at all of them: its variance says where to explore next.
    """

    process: Any
    x: Float[Array, "capacity dim"]
    at: Int[Array, " capacity"]
    readings: Float[Array, "capacity capacity"] | None
    inverse: Float[Array, "capacity capacity"] | None
    pivots: Float[Array, " capacity"]

    @property
    def changes(self) -> Float[Array, "capacity coordinates"]:
        """d_n of every point."""
        return self.process.rows if self.inverse is None else self.inverse

    @property
    def count(self) -> Count:
        """How many points there are by now."""
        return self.process.count.astype(int)


class Answers(eqx.Module):
    """The mean of a process that has evaluated the first `count` points of a design."""

    mean: Float[Array, " coordinates"]
    count: Count


def no_answers(design: Design) -> Answers:
    """Nothing observed yet."""
    return Answers(jnp.zeros_like(design.changes[0]), jnp.zeros((), int))


def answered(design: Design, answers: Answers, x: Point, y: Scalar) -> Answers:
    """The answers with the value at the next point of the design; a value elsewhere leaves no mark.

    A failed evaluation is taken for the mean, which stays as it is.
    """
    n = jnp.minimum(answers.count, design.pivots.shape[0] - 1)
    # To within rounding: a user may have had the point in other units.
    off = jnp.abs(design.x[n] - x.astype(design.x.dtype))
    asked = (answers.count < design.count) & jnp.all(off <= 16 * jnp.finfo(off.dtype).eps)
    mean = answers.mean
    value = mean[design.at[n]] if design.readings is None else dot(design.readings[n], mean)
    new = mean + design.changes[n] * ((y - value) / design.pivots[n])
    return Answers(jnp.where(asked & jnp.isfinite(y), new, mean), answers.count + asked.astype(int))


class Grown(eqx.Module):
    """A process and the weights of its mean's expansion."""

    process: GP
    weights: Float[Array, " capacity"]

    @property
    def count(self) -> Count:
        """How many values there are by now."""
        return self.process.count.astype(int)


# ---------------------------------------------------------------- what a method needs of either domain


class AbstractExploration(eqx.Module):
    """How beliefs about functions on a domain are held, with room for `capacity` observations each."""

    capacity: eqx.AbstractVar[int]

    @abc.abstractmethod
    def start(self, kernel: Covariance, noise: Scalar) -> Any:
        """A belief of an agent's own, with nothing observed."""

    @abc.abstractmethod
    def explore(self, key: Key, belief: Any, past: History | None = None) -> Point:
        """The point at which the variance of a belief, or of a design, is largest.

        The key draws candidates, or breaks ties among such points. With the `past` of an agent,
        points at which its evaluations fail are left out.
        """

    @abc.abstractmethod
    def observe(self, belief: Any, x: Point, y: Scalar) -> Any:
        """The belief given a further value; a value that is not finite leaves no mark."""

    @abc.abstractmethod
    def mean(self, belief: Any) -> Mean:
        """The mean in the form that `total` adds up."""

    @abc.abstractmethod
    def of(self, expansion: Expansion) -> Mean:
        """Another mean, such as a sketch's, in the form that `best` takes."""

    @abc.abstractmethod
    def best(self, key: Key, design: Design | None, terms: Terms, past: History) -> Point:
        """The maximizer of a sum of means, each with its factor, where evaluations do not fail."""

    @abc.abstractmethod
    def peak(self, key: Key, design: Design | None, terms: Terms) -> Point:
        """The maximizer of a sum of means, each with its factor, wherever it is."""

    @abc.abstractmethod
    def no_design(self, kernel: Covariance, noise: Scalar) -> Design:
        """The design of no points yet, with room for `capacity`."""

    @abc.abstractmethod
    def designed(self, design: Design, x: Point, wanted: Flag) -> Design:
        """The design with a further point, if it is wanted; the same if it is not, or if there is
        no room.
        """


class OnPoints(AbstractExploration):
    """All points of a finite domain, exactly: O(capacity points) an observation and in memory."""

    domain: Finite
    capacity: int = eqx.field(static=True)

    def start(self, kernel: Covariance, noise: Scalar) -> OverPoints:
        return table(kernel, noise, self.domain.points, self.capacity)

    def explore(self, key: Key, belief: OverPoints | Design, past: History | None = None) -> Point:
        process = belief.process if isinstance(belief, Design) else belief
        variance = process.variance
        if past is not None:
            variance = safe(past, self.domain.points, variance)
        return self.domain.points[any_largest(key, variance)]

    def observe(self, belief: OverPoints, x: Point, y: Scalar) -> OverPoints:
        return observed(belief, self.domain.points, nearest(self.domain.points, x), y)

    def mean(self, belief: OverPoints | Answers) -> Mean:
        return belief.mean

    def of(self, expansion: Expansion) -> Mean:
        return jax.vmap(expansion)(self.domain.points)

    def best(self, key: Key, design: Design | None, terms: Terms, past: History) -> Point:
        del key, design
        values = jnp.asarray(sum(factor * mean for factor, mean in terms))
        return self.domain.points[jnp.argmax(safe(past, self.domain.points, values))]

    def peak(self, key: Key, design: Design | None, terms: Terms) -> Point:
        del key, design
        values = jnp.asarray(sum(factor * mean for factor, mean in terms))
        return self.domain.points[jnp.argmax(values)]

    def no_design(self, kernel: Covariance, noise: Scalar) -> Design:
        process, points = self.start(kernel, noise), self.domain.points
        x, none = jnp.zeros((self.capacity, points.shape[1]), points.dtype), jnp.zeros((), int)
        at, pivots = jnp.full((self.capacity,), none), jnp.ones((self.capacity,), points.dtype)
        return Design(process, x, at, None, None, pivots)

    def designed(self, design: Design, x: Point, wanted: Flag) -> Design:
        old = design.process
        i = nearest(self.domain.points, x)
        y = jnp.where(wanted, 0, jnp.nan).astype(old.mean.dtype)
        process = observed(old, self.domain.points, i, y)
        n = jnp.where(wanted, old.count, self.capacity)  # where writes are dropped
        return Design(
            process,
            design.x.at[n].set(x.astype(design.x.dtype), mode="drop"),
            design.at.at[n].set(i, mode="drop"),
            None,
            None,
            design.pivots.at[n].set(jnp.sqrt(old.variance[i] + old.noise), mode="drop"),
        )


class Anywhere(AbstractExploration):
    """Any other domain: maximizers are looked for among `candidates` and climbed to."""

    domain: AbstractDomain
    capacity: int = eqx.field(static=True)
    candidates: int = eqx.field(static=True)

    def start(self, kernel: Covariance, noise: Scalar) -> Grown:
        process = gp.empty(kernel, noise, self.capacity, self.domain.dim)
        return Grown(process, jnp.zeros_like(process.y))

    def explore(self, key: Key, belief: Grown | Design, past: History | None = None) -> Point:
        return self._best(key, lambda x: gp.predict(belief.process, x)[1], past)

    def _best(self, key: Key, function: Function, past: History | None) -> Point:
        candidates = self.domain.candidates(key, self.candidates)
        limits = None if past is None else failures.limits(past, candidates)
        return maximize(function, self.domain, candidates, limits=limits)[0]

    def observe(self, belief: Grown, x: Point, y: Scalar) -> Grown:
        process = gp.append(belief.process, x, y)
        return Grown(process, linalg.solve_upper(process.chol, process.white))

    def mean(self, belief: Grown | Answers) -> Mean:
        if isinstance(belief, Answers):
            return belief.mean
        return Expansion(belief.process.kernel, belief.process.x, belief.weights)

    def of(self, expansion: Expansion) -> Mean:
        return expansion

    def best(self, key: Key, design: Design | None, terms: Terms, past: History) -> Point:
        return self._best(key, _sum(design, terms), past)

    def peak(self, key: Key, design: Design | None, terms: Terms) -> Point:
        return self._best(key, _sum(design, terms), None)

    def no_design(self, kernel: Covariance, noise: Scalar) -> Design:
        process = gp.empty(kernel, noise, self.capacity, self.domain.dim)
        none, at = jnp.zeros_like(process.chol), jnp.zeros((self.capacity,), int)
        return Design(process, process.x, at, none, none, jnp.ones_like(process.y))

    def designed(self, design: Design, x: Point, wanted: Flag) -> Design:
        process = gp.append(design.process, x, jnp.where(wanted, 0, jnp.nan).astype(x.dtype))
        last = jnp.minimum(design.count, self.capacity - 1)
        here = jnp.arange(self.capacity) == last
        pivot, row = process.chol[last, last], jnp.where(here, 0, process.chol[last])
        assert design.readings is not None
        assert design.inverse is not None
        change = (here.astype(row.dtype) - dot(row, design.inverse)) / pivot
        reading = jax.vmap(lambda z: process.kernel(process.x[last], z))(process.x)
        n = jnp.where(wanted, design.count, self.capacity)  # where writes are dropped
        return Design(
            process,
            process.x,
            design.at,
            design.readings.at[n].set(reading, mode="drop"),
            design.inverse.at[n].set(change, mode="drop"),
            design.pivots.at[n].set(pivot, mode="drop"),
        )


def _expanded(design: Design | None, mean: Mean) -> Expansion:
    if isinstance(mean, Expansion):
        return mean
    assert design is not None  # there are no coordinates without one
    return Expansion(design.process.kernel, design.x, mean)


def _sum(design: Design | None, terms: Terms) -> Function:
    """A sum of means as a function of a point."""
    expansions = [(factor, _expanded(design, mean)) for factor, mean in terms]

    def function(x: Point) -> Scalar:
        return jnp.sum(jnp.stack([factor * mean(x) for factor, mean in expansions]))

    return function
