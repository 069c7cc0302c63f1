"""What owners and a server compute in a secure sum of a private method (`jaxbo.privacy.distributed`).

    x_n   = part(algorithm, key, round, n, message)          an owner's numbers, if it is `drawn`
    y_n   = x_n + noise(algorithm, secure)                   what leaves it, behind masks
    sums  = read(algorithm, round, Σ_n y_n mod 2^32)         what the server broadcasts by

A federation runs these functions, and an audit attacks the same.
"""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int32, UInt32

from jaxbo._check import is_a, require
from jaxbo.algos.base import _shapes
from jaxbo.algos.base.federated import AbstractFederated
from jaxbo.algos.base.private import AbstractPrivate
from jaxbo.privacy import distributed
from jaxbo.privacy.distributed import SecureSum
from jaxbo.types import Count, Flag, Key, Scalar


def check(algorithm: AbstractFederated, secure: SecureSum) -> None:
    """`ValueError` for a method whose messages cannot be summed up like this, or without the extra."""
    is_a("secure", secure, SecureSum)
    name = type(algorithm).__name__
    require(
        isinstance(algorithm, AbstractPrivate),
        f"{name} cannot have secure=SecureSum(…): it needs a private method, whose broadcast follows "
        "from a sum of clipped messages with noise, such as DPFTSDE or DPLearnedPrior.",
    )
    assert isinstance(algorithm, AbstractPrivate)
    distributed.check_extra()
    secure.check(algorithm.mechanism, algorithm.agents, size(algorithm))


def _sums(algorithm: AbstractPrivate) -> Array:
    vector = algorithm.vector(_shapes.message(algorithm, algorithm.setup(jr.key(0))))
    return algorithm.weights(jnp.zeros((), int))[:, :1] * vector[None, :]


_shape = _shapes.shapes(_sums)


def size(algorithm: AbstractPrivate) -> int:
    """Numbers in the sum of all regions together."""
    return int(np.prod(_shape(algorithm).shape))


def part(
    algorithm: AbstractPrivate, key: Key, round: Count, agent: Count, message: object
) -> Int32[Array, " size"]:
    """An agent's part of the sums of all regions, in units of the grid and without noise."""
    weights = algorithm.weights(round)
    own = algorithm.mechanism.part(algorithm.vector(message), weights[:, agent])
    sensitivity = algorithm.mechanism.sensitivity(weights).astype(own.dtype)
    return distributed.rounded(key, own.ravel(), sensitivity)


def drawn(algorithm: AbstractPrivate, key: Key) -> Flag:
    """Whether an owner adds its part in a round: each draws itself."""
    return algorithm.mechanism.sampling.draw(key, agents=1)[0]


def noise(
    algorithm: AbstractPrivate, secure: SecureSum, owners: int = 1
) -> UInt32[np.ndarray, "owners size"]:
    """The noise that each of some owners adds, drawn outside of compiled code."""
    numbers = size(algorithm)
    share = secure.share(float(np.asarray(algorithm.mechanism.z)), numbers)
    return distributed.noise(share, owners * numbers).reshape(owners, numbers)


def read(
    algorithm: AbstractPrivate, round: Count, total: UInt32[Array, " size"]
) -> Float[Array, "regions released"]:
    """The sums of all regions."""
    weights = algorithm.weights(round)
    sums = distributed.decoded(total, algorithm.mechanism.sensitivity(weights))
    return sums.reshape(weights.shape[0], -1)


def louder(algorithm: AbstractPrivate, excess: float | Scalar) -> AbstractPrivate:
    """The method as a server broadcasts by it: its z says how much noise there is in the sum."""
    z = algorithm.mechanism.z
    return eqx.tree_at(lambda a: a.mechanism.z, algorithm, (z * excess).astype(z.dtype))
