"""A directory of the public keys of all owners' identities (`_identities`)."""

import dataclasses
import hashlib
import re
from os import PathLike
from pathlib import Path

from jaxbo._check import require, shown
from jaxbo.privacy.distributed import SecureSum

#: A line of a directory: an agent, and the 32 bytes of its key.
_LINE = re.compile(r"\s*([0-9]{1,9})\s+([0-9a-fA-F]{64})\s*")


@dataclasses.dataclass(frozen=True)
class Directory:
    """The public parts of the identities of all agents, in order."""

    keys: tuple[bytes, ...]

    @classmethod
    def given(
        cls, path: str | PathLike | None, agents: int, secure: SecureSum | None
    ) -> "Directory | None":
        """The directory that a party of secure sums is given, if it is given one."""
        if path is None:
            return None
        require(secure is not None, "directory is for secure sums: give secure=SecureSum(…), too.")
        return cls.read(path, agents)

    @classmethod
    def read(cls, path: str | PathLike, agents: int) -> "Directory":
        """The directory in a text file. `ValueError` unless it has one key for each agent."""
        require(
            isinstance(path, str | PathLike),
            f"directory must be the path of a file of public keys, got {shown(path)}.",
        )
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise ValueError(f"the directory {path} cannot be read: {error}") from error
        found: dict[int, bytes] = {}
        for number, line in enumerate(lines, 1):
            if line.strip():
                where = f"line {number} of the directory {path}"
                agent, key = _line(line, where)
                require(agent < agents, f"{where} is of agent {agent}; there are {agents} agents.")
                require(agent not in found, f"{where} is a second line of agent {agent}.")
                found[agent] = key
        missing = [agent for agent in range(agents) if agent not in found]
        require(not missing, f"the directory {path} has no key of the agents {missing}.")
        require(
            len(set(found.values())) == agents,
            f"two agents of the directory {path} have the same key.",
        )
        return cls(tuple(found[agent] for agent in range(agents)))

    def digest(self) -> bytes:
        """Equal for equal directories alone."""
        return hashlib.sha256(b"".join(self.keys)).digest()


def _line(line: str, where: str) -> tuple[int, bytes]:
    parts = _LINE.fullmatch(line)
    require(parts, f"{where} must be an agent's number and a key of 64 hexadecimal digits.")
    assert parts is not None
    return int(parts[1]), bytes.fromhex(parts[2])
