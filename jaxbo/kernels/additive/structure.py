"""Which variables share a factor: given, drawn at random, or learned from the observations.

    U ~ p(U | data) ∝ p(U) N(y; 0, Σ_I k_I + noise I)                        (DEC-HBO, appendix B)

A structure is scopes [factors, arity], -1 where a factor has fewer variables. Several are held at
the same time, a structure for each chain, so that an acquisition can be averaged over them (eq. 5).
"""

import abc
import math
import operator
from collections.abc import Iterable, Sequence
from typing import SupportsIndex

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Int

from jaxbo._check import require, whole
from jaxbo._extensible import Extensible
from jaxbo.kernels.additive.chain import Chain, Evidence, Scopes, sample
from jaxbo.types import Key, Scalar, named


class AbstractStructure(Extensible):
    """The source of the scopes of an additive model."""

    @property
    def fixed(self) -> tuple[tuple[int, ...], ...] | None:
        """Returns the scopes if they are known in advance, else None.

        Scopes of fewest variables come first, as `factor_graph` stacks their tables. The variables
        of each are sorted, and are the tables' axes in this order.
        """
        return None

    @property
    def chains(self) -> int:
        """Returns how many structures there are at the same time."""
        return 1

    @property
    def learns(self) -> bool:
        """Says whether `update` asks the observations, and counts how often pairs share a factor."""
        return False

    def alone(self, dim: int) -> int:
        """Counts the first factors that share a variance evenly, if all others have another variance.

        Args:
            dim: Number of variables.

        Returns:
            The number of them; 0 if all factors share a variance evenly.
        """
        del dim
        return 0

    def order(self, scopes: Scopes) -> Int[Array, " dim"] | None:
        """Puts all variables in an order, each after a variable that it shares a factor with.

        Args:
            scopes: The variables of every factor.

        Returns:
            The order, if the scopes are known to be a tree whose factors have as many variables
            each; else None.
        """
        del scopes
        return None

    @abc.abstractmethod
    def start(self, key: Key, dim: int) -> Scopes:
        """Makes the structure before any observation.

        Args:
            key: Random key.
            dim: Number of variables.

        Returns:
            The variables of every factor, -1 for empty places.

        Raises:
            ValueError: The structure needs more variables.
        """

    @abc.abstractmethod
    def update(self, key: Key, scopes: Scopes, dim: int, evidence: Evidence) -> Chain:
        """Finds another structure given the data.

        Args:
            key: Random key.
            scopes: The variables of every factor.
            dim: Number of variables.
            evidence: The log evidence of a structure.

        Returns:
            The structure, and how it was found.
        """


class Given(AbstractStructure):
    """Scopes that are known; they may overlap.

    Factors of fewest variables come first, in whatever order they are given, and the variables of
    each are sorted.

    `ValueError` for a factor that names a variable twice.
    """

    scopes: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    def __init__(self, scopes: Sequence[Sequence[SupportsIndex]]):
        require(
            all(isinstance(scope, Iterable) for scope in scopes),
            f"scopes must have the variables of each factor, such as [(0, 1), (1, 2)], got {scopes}.",
        )
        found = [tuple(sorted(operator.index(v) for v in scope)) for scope in scopes]
        require(len(found) > 0, "there must be at least one factor: scopes is empty.")
        for number, scope in enumerate(found):
            require(len(scope) > 0, f"factor {number} has no variables.")
            require(
                len(set(scope)) == len(scope), f"factor {number} names a variable twice: {scope}."
            )
        self.scopes = tuple(sorted(found, key=len))

    @property
    def fixed(self) -> tuple[tuple[int, ...], ...]:
        return self.scopes

    def start(self, key: Key, dim: int) -> Scopes:
        del key
        wrong = sorted({v for scope in self.scopes for v in scope if not 0 <= v < dim})
        require(not wrong, f"scopes name variables {wrong}, but there are {dim}.")
        return jnp.asarray(padded(self.scopes))

    def update(self, key: Key, scopes: Scopes, dim: int, evidence: Evidence) -> Chain:
        return Chain(scopes, jnp.ones(()))


class RandomTree(AbstractStructure):
    """A tree of pairs that is drawn anew at every fit (RDUCB, Ziomek and Bou Ammar, 2023).

    Nothing is learned. Messages find the maximum of its acquisition, as on any tree. It needs at
    least two variables.

    Example:
        >>> import jax.random as jr, jaxbo
        >>> tree = jaxbo.RandomTree()
        >>> tree.start(jr.key(0), dim=5).shape
        (4, 2)
        >>> model = jaxbo.Decomposed(tree, capacity=30, refit_every=1)
    """

    def start(self, key: Key, dim: int) -> Scopes:
        require(dim >= 2, f"a tree of pairs needs two variables, got {dim}.")
        order_key, parent_key = jr.split(key)
        order = jr.permutation(order_key, dim)
        # Every variable is joined to one of those before it.
        places = jnp.arange(1, dim)
        parents = jr.randint(parent_key, (dim - 1,), 0, places)
        return jnp.stack([order[parents], order[places]], axis=1).astype(jnp.int32)

    def order(self, scopes: Scopes) -> Int[Array, " dim"]:
        return jnp.concatenate([scopes[:1, 0], scopes[:, 1]])

    def update(self, key: Key, scopes: Scopes, dim: int, evidence: Evidence) -> Chain:
        return Chain(self.start(key, dim), jnp.ones(()))


class Sampled(AbstractStructure):
    """Learned structures: Markov chains of Metropolis and Hastings over factors of several variables.

    Every variable has a factor of its own, and these share a variance evenly. Beside them are slots. A
    slot holds a factor of two or more variables or nothing, and no two hold the same. All factors in
    slots have another variance, the same for each. The prior of a structure is exp(-penalty n), with n
    the places taken in slots.

    A move fills or empties a slot, exchanges a variable, makes a factor larger or smaller by a
    variable, or changes noise and variances (`kernels.additive.chain`). A score test of all pairs,
    made anew after every hundred moves, says which pairs to try most often. A move computes the parts
    of two factors in the covariance, however many there are, and factorizes the covariance. A test
    takes O(variables² observations²).

    Args:
        arity: The most variables of a factor, at least 2. Default: 2.
        factors: Number of slots, at least 1. None: as many as there are variables.
        count: Number of chains, at least 1. Default: 4.
        steps: Number of moves tried at every fit, at least 1; tens of variables need a thousand.
            Default: 100.
        penalty: The penalty of a taken place, a finite number. None: the log of the number of
            variables. A slot is then about half as likely to hold a pair as to be empty, however many
            variables there are.

    Raises:
        ValueError: A number is out of its range.

    Example:
        >>> import jax.random as jr, jaxbo
        >>> structure = jaxbo.Sampled(arity=3, factors=2)
        >>> structure.start(jr.key(0), dim=4).tolist()[:2]
        [[0, -1, -1], [1, -1, -1]]
        >>> jaxbo.Decomposed(structure, capacity=30).structure.chains
        4
    """

    arity: int = eqx.field(static=True, default=2)
    factors: int | None = eqx.field(static=True, default=None)
    count: int = eqx.field(static=True, default=4)
    steps: int = eqx.field(static=True, default=100)
    penalty: Scalar | None = eqx.field(
        converter=lambda penalty: None if penalty is None else named("penalty")(penalty),
        default=None,
    )

    def __check_init__(self):
        whole("arity", self.arity, least=2)
        whole("count", self.count, least=1)
        whole("steps", self.steps, least=1)
        if self.factors is not None:
            whole("factors", self.factors, least=1)
        require(
            self.penalty is None or jnp.all(jnp.isfinite(self.penalty)),
            f"penalty must be finite, got {self.penalty}.",
        )

    @property
    def chains(self) -> int:
        return self.count

    @property
    def learns(self) -> bool:
        return True

    def alone(self, dim: int) -> int:
        return dim

    def start(self, key: Key, dim: int) -> Scopes:
        del key
        require(dim >= 2, f"factors of several variables need two variables, got {dim}.")
        more = dim if self.factors is None else self.factors
        scopes = np.full((dim + more, self.arity), -1, np.int32)
        scopes[:dim, 0] = np.arange(dim)
        return jnp.asarray(scopes)

    def update(self, key: Key, scopes: Scopes, dim: int, evidence: Evidence) -> Chain:
        penalty = math.log(dim) if self.penalty is None else self.penalty
        return sample(key, scopes, evidence, dim, fixed=dim, steps=self.steps, penalty=penalty)


def padded(scopes: Sequence[Sequence[SupportsIndex]]) -> Int[np.ndarray, "factors arity"]:
    """Scopes of any length, filled up by -1."""
    arity = max(len(scope) for scope in scopes)
    rows = [[int(v) for v in scope] + [-1] * (arity - len(scope)) for scope in scopes]
    return np.array(rows, np.int32)
