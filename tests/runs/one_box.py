"""One black box, and workers of one model who evaluate it."""

import jax.numpy as jnp
import numpy as np

from jaxbo.algos.egp import EGP
from jaxbo.domains.base import Cube
from jaxbo.kernels.choosing.policy import Thompson
from jaxbo.kernels.models.fitted import Exact, Fitted
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.objectives.families import Same
from jaxbo.objectives.functions import branin_rescaled
from tests.walk import Stroll

BRANIN = branin_rescaled()
OBJECTIVE = Same(BRANIN, 0.1)


def egp(workers=1, policy=None, domain=None, capacity=30, refit_every=None):
    kernel = SquaredExponential(0.3)
    model = Fitted(
        capacity, kernel, size=40, noise=1e-2, refit_every=refit_every, inference=Exact()
    )
    policy = Thompson() if policy is None else policy
    domain = Cube(2) if domain is None else domain
    return EGP(domain, model, policy, workers, candidates=64)


def stroll(workers=1, capacity=None):
    """Of few operations, for tests that any method serves."""
    return Stroll(Cube(2), workers, Fixed(size=8, capacity=capacity))


def branin(worker, x):
    return float(BRANIN(jnp.asarray(x)))


def same(a, b):
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()
