"""jaxbo's first choice for a black box, the subject of the comparison."""

from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.bo import BO
from jaxbo.domains.base import AbstractDomain

NAME = "jaxbo"


def method(domain: AbstractDomain, evaluations: int, workers: int = 1) -> AbstractAlgorithm:
    """The method that users are advised to take, for so many evaluations with the initial points."""
    return BO(domain, evaluations, workers=workers)
