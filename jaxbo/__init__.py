"""A JAX functional core for Bayesian optimization by many agents."""

from jaxbo import accounting, functions, metrics, objectives, schedules
from jaxbo._archive import CheckpointError
from jaxbo._simulation import SimulationWarning
from jaxbo.algos.base import AbstractAlgorithm, AbstractFederated, AbstractIndependent
from jaxbo.algos.cepe import CEPE
from jaxbo.algos.dec_hbo import DECHBO
from jaxbo.algos.dp_fts_de import DPFTSDE
from jaxbo.algos.egp import EGP
from jaxbo.algos.exp3bo import EXP3BO
from jaxbo.algos.fts import FTS
from jaxbo.algos.one_model import AbstractOneModel
from jaxbo.algos.random_search import RandomSearch
from jaxbo.algos.rgpe import RGPE
from jaxbo.algos.taf import TAF
from jaxbo.algos.ts import TS
from jaxbo.domains import Cube, Finite, Regions
from jaxbo.driver import drive, replay
from jaxbo.kernels.covariance import Matern12, Matern32, Matern52, SquaredExponential
from jaxbo.kernels.decomposed import Decomposed
from jaxbo.kernels.ensemble import Ensemble
from jaxbo.kernels.factor_policy import FactorSample, MaxValueEntropy, UpperBound
from jaxbo.kernels.fitted import Exact, Fitted, OnFeatures
from jaxbo.kernels.marginal import Marginal
from jaxbo.kernels.mechanism import FixedSize, Mechanism, Poisson, Weighting
from jaxbo.kernels.policy import EI, UCB, Drawn, Largest, Thompson
from jaxbo.kernels.pooled import Pooled
from jaxbo.kernels.ranking import Ranked
from jaxbo.kernels.sketch import Pivoted, Sketch
from jaxbo.kernels.structure import RandomTree, Sampled
from jaxbo.kernels.surrogate import Fixed
from jaxbo.ledger import BudgetError, Ledger
from jaxbo.loop import run
from jaxbo.parameters import Categorical, Integer, Real
from jaxbo.renewing import LostWorkerError, Renewing
from jaxbo.space import Space
from jaxbo.trace import Round, Summary, Trace, summary
from jaxbo.workers import Desk, Timeline, drive_async, simulate

__version__ = "0.1.0"

__all__ = [
    "CEPE",
    "DECHBO",
    "DPFTSDE",
    "EGP",
    "EI",
    "EXP3BO",
    "FTS",
    "RGPE",
    "TAF",
    "TS",
    "UCB",
    "AbstractAlgorithm",
    "AbstractFederated",
    "AbstractIndependent",
    "AbstractOneModel",
    "BudgetError",
    "Categorical",
    "CheckpointError",
    "Cube",
    "Decomposed",
    "Desk",
    "Drawn",
    "Ensemble",
    "Exact",
    "FactorSample",
    "Finite",
    "Fitted",
    "Fixed",
    "FixedSize",
    "Integer",
    "Largest",
    "Ledger",
    "LostWorkerError",
    "Marginal",
    "Matern12",
    "Matern32",
    "Matern52",
    "MaxValueEntropy",
    "Mechanism",
    "OnFeatures",
    "Pivoted",
    "Poisson",
    "Pooled",
    "RandomSearch",
    "RandomTree",
    "Ranked",
    "Real",
    "Regions",
    "Renewing",
    "Round",
    "Sampled",
    "SimulationWarning",
    "Sketch",
    "Space",
    "SquaredExponential",
    "Summary",
    "Thompson",
    "Timeline",
    "Trace",
    "UpperBound",
    "Weighting",
    "accounting",
    "drive",
    "drive_async",
    "functions",
    "metrics",
    "objectives",
    "replay",
    "run",
    "schedules",
    "simulate",
    "summary",
]
