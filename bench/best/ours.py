"""jaxbo's first choice for a black box, the subject of the comparison, and other methods of ours."""

from collections.abc import Callable

from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.bo import BO
from jaxbo.algos.dec_hbo import DECHBO
from jaxbo.algos.egp import EGP
from jaxbo.domains.base import AbstractDomain
from jaxbo.kernels.additive.decomposed import Decomposed
from jaxbo.kernels.additive.structure import Sampled
from jaxbo.kernels.choosing.policy import EI
from jaxbo.kernels.models.fitted import Fitted

NAME = "jaxbo"
#: Moves of a chain of structures at every fit.
MOVES = 1000


def method(domain: AbstractDomain, evaluations: int, workers: int = 1) -> AbstractAlgorithm:
    """The method that users are advised to take, for so many evaluations with the initial points."""
    return BO(domain, evaluations, workers=workers)


def structured(domain: AbstractDomain, evaluations: int, workers: int = 1) -> AbstractAlgorithm:
    """DEC-HBO with a structure that it learns, by as many moves as tens of variables need."""
    return DECHBO(domain, Decomposed(Sampled(steps=MOVES), evaluations), workers=workers)


def fitted(domain: AbstractDomain, evaluations: int, workers: int = 1) -> AbstractAlgorithm:
    """Expected improvement of a single process, whose settings are all those of its class."""
    return EGP(domain, Fitted(evaluations), EI(), workers=workers)


#: Other methods of ours that can stand in a column beside the first choice, if they are named.
BESIDE: dict[str, Callable[[AbstractDomain, int, int], AbstractAlgorithm]] = {
    "DECHBO": structured,
    "Fitted": fitted,
}
