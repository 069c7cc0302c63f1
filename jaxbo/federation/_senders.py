"""Senders of replies, and the agents' numbers that they have.

Owners say themselves which agent they are. The first sender that is heard as an agent has its number from
then on, and the server's file keeps the sender's name:

- If a sender has a number, nobody who has another number can take it.
- A sender without a number can answer for it as long as the sender who has it does not. So an owner
  whose node registers anew, and has another name, goes on.
- A sender can change to a number that nobody has, and leaves its own.
- A sender has a single number in a round.

So a sender cannot answer for many agents, or make an agent absent whose sender has the number. This is no
proof of identity: the first sender with a number is believed, and so is the first new sender that answers
in the place of one that is gone. A directory (`_directory`) has proofs, in secure sums.
"""

from collections.abc import Mapping, Sequence

from jaxbo.federation.wire import RefusedError


def check(agent: int, sender: str, known: Sequence[str], heard: Mapping[int, str]) -> None:
    """`RefusedError` if a sender cannot have an agent's number.

    `known` has the sender who has each number, or an empty text. `heard` has the senders in this round.
    """
    for other, name in heard.items():
        if name == sender and other != agent:
            raise RefusedError(f"{sender} has answered as agent {other} in this round.")
    if sender in known and known[agent] not in ("", sender):
        raise RefusedError(
            f"{sender} is agent {known.index(sender)}, and {known[agent]} is agent {agent}. If a node "
            "had a wrong number, register it anew."
        )


def after(known: Sequence[str], heard: Mapping[int, str], agents: int) -> list[str]:
    """The sender who has each number after a round."""
    others = [*known] or [""] * agents
    kept = ["" if name in heard.values() else name for name in others]
    return [name or heard.get(agent, "") for agent, name in enumerate(kept)]
