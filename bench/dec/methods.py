"""Parts that DEC-HBO's experiments share: sums of factors on a grid, and the plain processes beside them.

All processes are exact, and fitted to the initial points and then every 10 evaluations.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.common.search import INITIAL, NOISE, Method
from bench.tasks import sparse_gp
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.dec_hbo import DECHBO
from jaxbo.algos.egp import EGP
from jaxbo.domains.base import AbstractDomain, Cube
from jaxbo.kernels.additive.decomposed import Decomposed
from jaxbo.kernels.additive.policy import AbstractFactorPolicy, UpperBound
from jaxbo.kernels.choosing.policy import EI, AbstractPolicy
from jaxbo.kernels.models.fit import Priors
from jaxbo.kernels.models.fitted import Exact, Fitted
from jaxbo.kernels.processes.covariance import SquaredExponential

REFIT = 10
#: Grid points along each coordinate, for factors of one to four variables.
GRIDS = {1: 64, 2: 32, 3: 16, 4: 10}
PLAIN, REMBO = "plain GP, scaled priors, EI", "REMBO"
#: Points that a search for the hyperparameters of a sparse process starts from: fewer than in few
#: dimensions, where they would cover something.
CANDIDATES = 100


def decomposed(
    structure: Any, evaluations: int, grid: int, *, noise: float = NOISE, **options: Any
) -> Decomposed:
    """A sum of factors: their scopes, or a model that learns the scopes."""
    options = {"refit_every": REFIT, "warp": True} | options
    return Decomposed(structure, INITIAL + evaluations, noise=noise, grid=grid, **options)


def chains(
    size: int, policy: AbstractFactorPolicy = UpperBound()
) -> Callable[[int, int], AbstractAlgorithm]:
    """(inducing inputs, evaluations) -> factors of `size` neighbors among a sparse process's numbers."""

    def method(inducing: int, evaluations: int) -> DECHBO:
        model = decomposed(sparse_gp.scopes(inducing, size), evaluations, GRIDS[size])
        domain = Cube(sparse_gp.dimensions(inducing))
        return DECHBO(domain, model, policy, candidates=CANDIDATES)

    return method


def scaled(domain: AbstractDomain, evaluations: int, noise: float = NOISE) -> EGP:
    """EI of a plain process with a length scale for each coordinate and a prior scaled by dimension."""
    kernel = SquaredExponential(np.full(domain.dim, 0.3))
    return EGP(domain, _process(kernel, evaluations, noise, Priors.scaled(domain.dim)), EI())


def plain(policy: AbstractPolicy) -> Method:
    """A plain process with a single length scale."""
    return lambda dim, evaluations: EGP(
        Cube(dim), _process(SquaredExponential(0.3), evaluations, NOISE, None), policy
    )


def _process(
    kernel: SquaredExponential, evaluations: int, noise: float, priors: Priors | None
) -> Fitted:
    capacity = INITIAL + evaluations
    return Fitted(
        capacity,
        kernel,
        noise=noise,
        refit_every=REFIT,
        inference=Exact(),
        warp=True,
        priors=priors,
    )
