"""A JAX functional core for Bayesian optimization by many agents."""

from jaxbo import (
    metrics,
    objectives,
    plotting,
    schedules,
    stopping,
)
from jaxbo._version import __version__
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.base.federated import AbstractFederated, AbstractIndependent
from jaxbo.algos.base.one_model import AbstractOneModel
from jaxbo.algos.base.outcomes import Outcome
from jaxbo.algos.base.private import AbstractPrivate
from jaxbo.algos.bo import BO
from jaxbo.algos.cepe import CEPE
from jaxbo.algos.dec_hbo import DECHBO
from jaxbo.algos.dp_fts_de import DPFTSDE
from jaxbo.algos.dp_learned_prior import DPLearnedPrior
from jaxbo.algos.egp import EGP
from jaxbo.algos.exp3bo import EXP3BO
from jaxbo.algos.fts import FTS
from jaxbo.algos.learned_prior import LearnedPrior
from jaxbo.algos.random_search import RandomSearch
from jaxbo.algos.rgpe import RGPE
from jaxbo.algos.taf import TAF
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Cube, Finite, Regions
from jaxbo.domains.parameters import Categorical, Context, Integer, Ordinal, Real
from jaxbo.domains.space import Space
from jaxbo.kernels.additive.decomposed import Decomposed
from jaxbo.kernels.additive.policy import FactorSample, MaxValueEntropy, UpperBound
from jaxbo.kernels.additive.structure import RandomTree, Sampled
from jaxbo.kernels.choosing.policy import EI, UCB, Drawn, Largest, Thompson
from jaxbo.kernels.choosing.ranking import Ranked
from jaxbo.kernels.choosing.stays import Stays
from jaxbo.kernels.models.ensemble import Ensemble
from jaxbo.kernels.models.fitted import Exact, Fitted, OnFeatures
from jaxbo.kernels.models.marginal import Marginal
from jaxbo.kernels.models.pooled import Pooled
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.models.widened import Widened
from jaxbo.kernels.processes.covariance import Matern12, Matern32, Matern52, SquaredExponential
from jaxbo.kernels.processes.sketch import Pivoted, Sketch
from jaxbo.objectives import functions
from jaxbo.privacy import accounting
from jaxbo.privacy.auditing import Audit
from jaxbo.privacy.ledger import BudgetError, Ledger
from jaxbo.privacy.mechanism import FixedSize, Mechanism, Poisson, Weighting
from jaxbo.runs._archive import CheckpointError
from jaxbo.runs._simulation import SimulationWarning
from jaxbo.runs.asynchronous import drive_async
from jaxbo.runs.auditing import audit
from jaxbo.runs.best import Best, best
from jaxbo.runs.compiled import run
from jaxbo.runs.desk import Desk
from jaxbo.runs.driver import drive, replay
from jaxbo.runs.minimize import maximize, minimize
from jaxbo.runs.renewing import LostWorkerError, Renewing
from jaxbo.runs.timeline import Timeline, simulate
from jaxbo.runs.trace import Round, Summary, Trace, summary

__all__ = [
    "BO",
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
    "AbstractPrivate",
    "Audit",
    "Best",
    "BudgetError",
    "Categorical",
    "CheckpointError",
    "Context",
    "Cube",
    "DPLearnedPrior",
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
    "LearnedPrior",
    "Ledger",
    "LostWorkerError",
    "Marginal",
    "Matern12",
    "Matern32",
    "Matern52",
    "MaxValueEntropy",
    "Mechanism",
    "OnFeatures",
    "Ordinal",
    "Outcome",
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
    "Stays",
    "Summary",
    "Thompson",
    "Timeline",
    "Trace",
    "UpperBound",
    "Weighting",
    "Widened",
    "__version__",
    "accounting",
    "audit",
    "best",
    "drive",
    "drive_async",
    "functions",
    "maximize",
    "metrics",
    "minimize",
    "objectives",
    "plotting",
    "replay",
    "run",
    "schedules",
    "simulate",
    "stopping",
    "summary",
]
