"""Table 1 of DEC-HBO: the functions, the paper's best regret, and sums of factors to search them with."""

import itertools

from bench.common.search import Method
from bench.dec.methods import GRIDS, REFIT, decomposed
from jaxbo.algos.dec_hbo import DECHBO
from jaxbo.domains.base import Cube
from jaxbo.kernels.additive.policy import AbstractFactorPolicy, UpperBound
from jaxbo.kernels.additive.structure import AbstractStructure
from jaxbo.objectives import functions

#: Of upper bounds, and of those that explore more.
BETA, MORE = 2.0, 6.0
PAIRS = "DEC-HBO, pairs"
FUNCTIONS = {
    "Hartmann-6": functions.hartmann6(),
    "Shekel-4": functions.shekel4(),
    "Michalewicz-10": functions.michalewicz10(),
}
#: The best of Table 1 on each.
PAPER = {"Hartmann-6": 0.7268, "Shekel-4": 1.4295, "Michalewicz-10": 1.2367}


def factors(
    size: int, policy: AbstractFactorPolicy = UpperBound(BETA), *, warp: bool = True
) -> Method:
    """All factors of so many variables."""

    def method(dim: int, evaluations: int) -> DECHBO:
        scopes = list(itertools.combinations(range(dim), size))
        model = decomposed(scopes, evaluations, GRIDS[size], warp=warp)
        return DECHBO(Cube(dim), model, policy)

    return method


def structured(structure: AbstractStructure, refit_every: int = REFIT) -> Method:
    """Factors that are learned or drawn."""
    return lambda dim, evaluations: DECHBO(
        Cube(dim),
        decomposed(structure, evaluations, GRIDS[2], refit_every=refit_every),
        UpperBound(BETA),
    )
