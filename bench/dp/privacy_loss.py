"""The loss of a run of a mechanism, by every accountant and at two δ: columns of the tables."""

from functools import partial
from typing import NamedTuple

from jaxbo.privacy import accounting
from jaxbo.privacy.mechanism import FixedSize, Mechanism

#: A δ that would do for many more agents than the paper's.
STRICT = 1e-5
COLUMNS = ("ε, moments", "ε, Rényi", "ε, PLD", f"ε, PLD, δ = {STRICT:g}", "z by PLD")


class Loss(NamedTuple):
    """ε by the paper's accountant, by Rényi and by PLD at the paper's δ, and by PLD at `STRICT`.

    `noise` is the z whose loss by PLD is the mechanism's loss by the paper's accountant.
    """

    moments: float | None = None
    renyi: float | None = None
    pld: float | None = None
    strict: float | None = None
    noise: float | None = None


def delta(agents: int) -> float:
    """The paper's δ."""
    return 1 / agents**1.1


def loss(mechanism: Mechanism, agents: int, rounds: int) -> Loss:
    """The losses of a whole run. Without noise there is none to state, and samples of a fixed size have
    only Rényi's.
    """
    if mechanism.z == 0:
        return Loss()
    cost = partial(accounting.epsilon, mechanism, rounds)
    paper = delta(agents)
    if isinstance(mechanism.sampling, FixedSize):
        return Loss(renyi=cost(paper, accounting.renyi))
    moments = cost(paper, accounting.moments)
    return Loss(
        moments,
        cost(paper, accounting.renyi),
        cost(paper, accounting.pld),
        cost(STRICT, accounting.pld),
        accounting.noise_for(moments, paper, mechanism.sampling, rounds, accounting.pld),
    )
