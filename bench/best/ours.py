"""jaxbo's first choice for a black box, the subject of the comparison."""

from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.egp import EGP
from jaxbo.domains.base import AbstractDomain
from jaxbo.kernels.choosing.policy import EI
from jaxbo.kernels.models.ensemble import Ensemble

NAME = "jaxbo"


def method(domain: AbstractDomain, evaluations: int) -> AbstractAlgorithm:
    """The method that users are advised to take, for so many evaluations with the initial ones."""
    return EGP(domain, Ensemble.warped(domain.dim, evaluations), EI())
