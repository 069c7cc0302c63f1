"""Functions of single variables and of pairs, which experiments with structures are about.

    f(x) = Σ_v f_v(x_v) + Σ_{(i, j) ∈ tree} f_ij(x_i, x_j),    all drawn from GP(0, exp(-|.|² / 2 scale²))

A random tree of dim / 4 pairs, and a factor for each variable; pairs have half of the prior variance.
Or triples in the place of pairs: dim / 5 of them, no two with a variable in common.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from jaxbo.domains.base import Cube
from jaxbo.kernels.additive.chain import Scopes
from jaxbo.kernels.additive.structure import RandomTree
from jaxbo.kernels.choosing.maximize import ascend
from jaxbo.kernels.factors import maxsum
from jaxbo.kernels.factors.graph import DataGraph
from jaxbo.types import Count, Key, Point, Scalar

#: Of every factor's process: a handful of bumps and hollows in a square.
LENGTH_SCALE = 0.4
#: Frequencies that a factor's function is a sum of.
FREQUENCIES = 50
#: Grid points along each coordinate, a fortieth of the length scale apart; steps from the best of them.
GRID, STEPS = 101, 5


class Sum(eqx.Module):
    """A function of single variables and of pairs or triples; the objective of every agent."""

    scopes: Scopes
    frequencies: Float[Array, "factors frequencies arity"]
    weights: Float[Array, "factors frequencies 2"]

    def __call__(self, key: Key, agent: Count, x: Point) -> Scalar:
        del key, agent
        return self.value(x)

    def value(self, x: Point) -> Scalar:
        """f(x), of prior variance 1."""
        return jnp.sum(jax.vmap(self.part)(self.frequencies, self.weights, x[self.scopes]))

    @staticmethod
    def part(
        frequencies: Float[Array, "frequencies arity"],
        weights: Float[Array, "frequencies 2"],
        point: Float[Array, " arity"],
    ) -> Scalar:
        """One factor."""
        angle = jnp.sum(frequencies * point[None, :], axis=1)
        return jnp.sum(weights * jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1))

    def maximum(self, dim: int, grid: int = GRID) -> Scalar:
        """The largest value, of pairs: that of the best point of a grid, improved from there."""
        points = jnp.linspace(0, 1, grid)
        each = jax.vmap(jax.vmap(self.part, (None, None, 0)), (None, None, 0))
        square = jnp.stack(jnp.meshgrid(points, points, indexing="ij"), axis=2)
        functions = self.frequencies, self.weights
        tables = (jax.lax.map(lambda of: each(of[0], of[1], square), functions),)
        graph = DataGraph(self.scopes, dim, grid)
        # No path in a tree is longer than `dim`; without damping messages are then exact.
        messages, _ = maxsum.settle(graph, tables, iterations=dim, damping=0.0, tolerance=0.0)
        x = points[maxsum.decode(graph, tables, messages)[:dim]]
        return ascend(self.value, Cube(dim), x, self.value(x), STEPS)[1]


def draw(key: Key, dim: int, arity: int = 2) -> Sum:
    """Functions on every variable and on the pairs of a random tree, or on triples."""
    tree_key, place_key, frequency_key, weight_key = jr.split(key, 4)
    places = jr.permutation(place_key, dim)
    if arity == 2:
        together = places[RandomTree().start(tree_key, max(1, dim // 4) + 1)]
    else:
        count = max(1, dim // 5)
        together = places[: arity * count].reshape(count, arity)
    count = len(together)
    alone = jnp.full((dim, arity), -1).at[:, 0].set(jnp.arange(dim))
    scopes = jnp.concatenate([alone, together]).astype(jnp.int32)
    variance = jnp.where(scopes[:, 1] < 0, 0.5 / dim, 0.5 / count)
    # Nothing varies along a place that no variable has.
    frequencies = jr.normal(frequency_key, (dim + count, FREQUENCIES, arity)) / LENGTH_SCALE
    weights = jr.normal(weight_key, (dim + count, FREQUENCIES, 2))
    return Sum(
        scopes,
        jnp.where(scopes[:, None] < 0, 0, frequencies),
        weights * jnp.sqrt(variance / FREQUENCIES)[:, None, None],
    )
