"""A JAX functional core for Bayesian optimization by many agents."""

from jaxbo import accounting, functions, metrics, objectives, schedules
from jaxbo._checkpoint import CheckpointError
from jaxbo.algos.base import AbstractAlgorithm, AbstractFederated, AbstractIndependent
from jaxbo.algos.dp_fts_de import DPFTSDE
from jaxbo.algos.fts import FTS
from jaxbo.algos.random_search import RandomSearch
from jaxbo.algos.ts import TS
from jaxbo.domains import Cube, Finite, Regions
from jaxbo.kernels.covariance import Matern12, Matern32, Matern52, SquaredExponential
from jaxbo.kernels.mechanism import FixedSize, Mechanism, Poisson, Weighting
from jaxbo.kernels.surrogate import Fitted, Fixed
from jaxbo.ledger import BudgetError, Ledger
from jaxbo.loop import Trace, drive, replay, run
from jaxbo.space import Categorical, Integer, Real, Space

__version__ = "0.1.0"

__all__ = [
    "DPFTSDE",
    "FTS",
    "TS",
    "AbstractAlgorithm",
    "AbstractFederated",
    "AbstractIndependent",
    "BudgetError",
    "Categorical",
    "CheckpointError",
    "Cube",
    "Finite",
    "Fitted",
    "Fixed",
    "FixedSize",
    "Integer",
    "Ledger",
    "Matern12",
    "Matern32",
    "Matern52",
    "Mechanism",
    "Poisson",
    "RandomSearch",
    "Real",
    "Regions",
    "Space",
    "SquaredExponential",
    "Trace",
    "Weighting",
    "accounting",
    "drive",
    "functions",
    "metrics",
    "objectives",
    "replay",
    "run",
    "schedules",
]
