"""The best candidate of each slab: where the search for a function's maximum goes on.

Functions w'φ(x) on features that many agents share have a kernel on accelerators
(`accelerated.slabs`): a single kernel for all agents, which writes only the best values. Each
region may have weights of its own.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxbo.domains.base import Regions
from jaxbo.kernels.accelerated import choice, slabs
from jaxbo.kernels.processes.features import FeatureMap, FourierFunction
from jaxbo.types import Count, Function, Point, Points, Scalar

#: The places of the best candidates of so many slabs, and the values there.
Found: TypeAlias = tuple[Int[Array, " slabs"], Float[Array, " slabs"]]
#: From a function, candidates, whether each is allowed, and a number of slabs.
Search: TypeAlias = Callable[[Function, Points, Bool[Array, " points"] | None, int], Found]


class Pieces(NamedTuple):
    """A function that is a smooth function of its own, `of(region)`, in every region."""

    regions: Regions
    of: Callable[[Count], Function]


class PiecewiseLinear(eqx.Module):
    """f(x) = φ(x)'w with the weights of the region that x is in; without `regions` there is a
    single region.
    """

    features: FeatureMap
    weights: Float[Array, "regions features"]
    regions: Regions | None

    def __call__(self, x: Point) -> Scalar:
        region = 0 if self.regions is None else self.regions.assign(x)
        return FourierFunction(self.features, self.weights[region])(x)


def best(
    plain: Search,
    function: Function,
    candidates: Points,
    allowed: Bool[Array, " points"] | None,
    number: int,
    pieces: Pieces | None,
) -> Found:
    """`plain` of the function, or the kernel in programs that hold it.

    `pieces` have the function of each region. Candidates are then in order of their regions.
    """
    linear = _linear(function, pieces) if choice.platforms() else None
    if linear is None or not choice.of_32_bits(linear.weights, candidates):
        return plain(function, candidates, allowed, number)
    common = linear.features, linear.regions, candidates

    def of_one(common: Any, weights: Any, allowed: Any) -> Found:
        features, regions, candidates = common
        return plain(PiecewiseLinear(features, weights, regions), candidates, allowed, number)

    def of_all(common: Any, weights: Any, allowed: Any, *, interpret: bool) -> Any:
        features, regions, candidates = common
        if allowed is not None and allowed.size >= slabs.LARGEST:
            return jax.vmap(of_one, (None, 0, 0))(common, weights, allowed)
        its = jnp.zeros(candidates.shape[:1], jnp.int32)
        if regions is not None:
            its = jax.vmap(regions.assign)(candidates).astype(jnp.int32)
        places, values = slabs.best(
            jax.vmap(features)(candidates), its, weights, allowed, slabs=number, interpret=interpret
        )
        return places.astype(int), values

    return choice.chosen(
        lambda: plain(function, candidates, allowed, number),
        lambda interpret: choice.mapped(of_one, of_all, interpret)(common, linear.weights, allowed),
    )


def _linear(function: Function, pieces: Pieces | None) -> PiecewiseLinear | None:
    """The function as `PiecewiseLinear`, if it is linear in each region."""
    if pieces is None:
        if not isinstance(function, FourierFunction):
            return None
        return PiecewiseLinear(function.features, function.weights[None, :], None)
    first, second = (pieces.of(jnp.full((), region)) for region in (0, 1))
    if not (isinstance(first, FourierFunction) and isinstance(second, FourierFunction)):
        return None
    if first.features is not second.features:
        return None

    def weights(region: Any) -> Array:
        piece = pieces.of(region)
        assert isinstance(piece, FourierFunction)
        return piece.weights

    all_weights = jax.vmap(weights)(jnp.arange(pieces.regions.count))
    return PiecewiseLinear(first.features, all_weights, pieces.regions)
