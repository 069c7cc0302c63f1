"""All that an owner of a federation must not lose, in its file."""

import dataclasses
from os import PathLike
from pathlib import Path

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int, PyTree

from jaxbo._check import require, shown
from jaxbo.algos.base.federated import BEFORE_FIRST_ROUND
from jaxbo.federation.wire import FORMAT, Packed, pack
from jaxbo.runs import _archive
from jaxbo.runs._identity import Identity


class Observations(eqx.Module):
    """The evaluations of an owner, in order.

    Args:
        rounds: The round of each evaluation, -1 for the initial design.
        queries: The points.
        values: The values, NaN for failed evaluations.

    Example:
        >>> import jaxbo.federation, numpy as np
        >>> known = jaxbo.federation.Observations.none(dim=2)
        >>> known.and_also(0, np.zeros(2), 1.5).values.tolist()
        [1.5]
    """

    rounds: Int[np.ndarray, " evaluations"]
    queries: Float[np.ndarray, "evaluations dim"]
    values: Float[np.ndarray, " evaluations"]

    @classmethod
    def none(cls, dim: int) -> "Observations":
        """No observations.

        Args:
            dim: Number of coordinates of a point.

        Returns:
            The empty record.
        """
        return cls(np.zeros(0, int), np.zeros((0, dim)), np.zeros(0))

    def and_also(self, round: int, x: Float[np.ndarray, " dim"], value: float) -> "Observations":
        """The observations and one more.

        Args:
            round: The round of the evaluation.
            x: The point.
            value: The value.

        Returns:
            The longer record.
        """
        return Observations(
            np.append(self.rounds, round),
            np.concatenate([self.queries, x[None]]),
            np.append(self.values, value),
        )


#: What a file is of.
KIND = "an owner"
#: The names of its arrays in the file.
KNOWN = tuple(Observations.__annotations__)
#: What names of arrays begin with that the owner remembers of the last broadcast.
KEPT = "remembered"


@dataclasses.dataclass
class OwnerMemory:
    """An owner's file: its random words, its last round, its client, its evaluations.

    `keyed` is the last round for which it has given keys of a secure sum.
    """

    path: Path
    identity: Identity
    secret: np.ndarray
    known: Observations
    round: int = BEFORE_FIRST_ROUND
    settled: bool = False
    keyed: int | None = None
    client: Packed | None = None
    remembered: Packed = dataclasses.field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> "OwnerMemory":
        manifest, arrays = _archive.read(path)
        _archive.check_format(path, manifest, KIND, FORMAT)
        try:
            secret, *known = (arrays.pop(name) for name in ("secret", *KNOWN))
            round, settled = int(manifest["round"]), bool(manifest["settled"])
            identity = dict(manifest["identity"])
            kept = {name for name in arrays if name.startswith(KEPT)}
            remembered = {name.removeprefix(KEPT): arrays.pop(name) for name in kept}
            keyed = None if manifest["keyed"] is None else int(manifest["keyed"])
            rest = round, settled, keyed, arrays, remembered
            return cls(path, identity, secret, Observations(*known), *rest)
        except (KeyError, TypeError, ValueError) as error:
            raise _archive.damaged(path, error) from error

    def save(self, client: PyTree) -> None:
        """With the client and its past."""
        self.client = pack(client)
        manifest = {"kind": KIND, "format": FORMAT, "identity": self.identity}
        manifest |= {"round": self.round, "settled": self.settled, "keyed": self.keyed}
        known = {name: getattr(self.known, name) for name in KNOWN}
        kept = {KEPT + name: array for name, array in self.remembered.items()}
        _archive.write(self.path, manifest, {**self.client, **kept, **known, "secret": self.secret})


def observations(path: str | PathLike) -> Observations:
    """Reads the observations in an owner's file.

    Args:
        path: The file, in the owner's folder.

    Returns:
        The observations.

    Raises:
        ValueError: `path` is no path. For a file of another kind it is a `CheckpointError`.

    Example:
        >>> import glob, tempfile, jax, jaxbo.federation
        >>> method, key = jaxbo.RandomSearch(jaxbo.Cube(1), 1), jax.random.key(0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     server = jaxbo.federation.Coordinator(method, 1, key, f"{folder}/s.npz", initial=2)
        ...     owner = jaxbo.federation.Owner(method, lambda x: 1.0, 0, folder)
        ...     name = owner.answer(server.request()).federation
        ...     jaxbo.federation.observations(f"{folder}/{name}.npz").values.tolist()
        [1.0, 1.0]
    """
    require(isinstance(path, str | PathLike), f"path must be that of a file, got {shown(path)}.")
    return OwnerMemory.load(Path(path)).known
