"""The methods of EGP-TS's experiments, and the paper's claims about them.

Thompson sampling is on 100 features (D = 50 frequencies), as in the paper, but where it says exact. All
methods fit their hyperparameters to the initial points and then every 5 evaluations. The paper's
ensemble does so every 50 and its others every time, as do two rows that are "fitted as printed": the
ensemble then takes less time, and a kernel alone several times as much.
GP-EI has a single length scale, and the paper's has one for each coordinate. Hyperparameters that are
sampled are flat in the logarithm, where the paper's are uniform. "Warped" are settings of ours: the
exact process, a length scale for each coordinate with the prior of `Priors.scaled`, values warped.
Users are advised to take `BO`: EI of the warped mixture with defaults, fits that see all values and the
better half of them in turn, and tops of quadratics.
BoTorch, where it is installed, is LogEI with its default model. Optuna's TPE and CMA-ES have the
settings of `common.peers`.
"""

from collections.abc import Iterable
from typing import Any

import equinox as eqx
import numpy as np

from bench.claims import BY, Check, below, difference, within
from bench.common import peers
from bench.common.botorch import BOTORCH
from bench.common.peers import CMA, PEERS, TPE
from bench.common.search import INITIAL, NOISE, Method
from jaxbo.algos.bo import BO
from jaxbo.algos.egp import EGP
from jaxbo.algos.exp3bo import EXP3BO
from jaxbo.domains.base import Cube
from jaxbo.kernels.choosing.policy import EI, UCB, AbstractPolicy, Drawn, Largest, Thompson
from jaxbo.kernels.models.ensemble import Ensemble
from jaxbo.kernels.models.fitted import Exact, Fitted
from jaxbo.kernels.models.marginal import Marginal
from jaxbo.kernels.processes.covariance import (
    AbstractKernel,
    Matern32,
    Matern52,
    SquaredExponential,
)

REFIT, FEATURES = 5, 100
#: Methods that are fitted as printed -> evaluations between fits: the paper's ensemble, and its others.
AS_PRINTED = {"EGP-TS, fitted as printed": 50, "SE ARD alone, fitted as printed": 1}
PRINTED, PRINTED_ALONE = AS_PRINTED
#: Of the upper bound, mean + beta^(1/2) deviations.
BETA = 4.0
EXACT = "EGP-TS, exact"
FIRST, MIXTURE = "BO", "mixture EI, warped"
#: Where fitting starts.
START = 0.3
#: The dictionary of Fig. 2.
SCALES = tuple(10.0**c for c in range(-4, 7))


def papers(dim: int) -> tuple[AbstractKernel, ...]:
    """The dictionary of Fig. 1: four forms. One of them has a length scale for each coordinate."""
    wide = SquaredExponential(np.full(dim, START))
    return SquaredExponential(START), wide, Matern32(START), Matern52(START)


def _ensemble(dim: int, evaluations: int, **options: Any) -> Ensemble:
    return Ensemble(papers(dim), _expert(evaluations, **options))


def _scales(evaluations: int) -> Ensemble:
    kernels = [SquaredExponential(scale) for scale in SCALES]
    return Ensemble(kernels, _expert(evaluations, keep_length_scale=True))


def _egp(policy: AbstractPolicy = Thompson(), **options: Any) -> Method:
    return lambda dim, evaluations: EGP(Cube(dim), _ensemble(dim, evaluations, **options), policy)


def _egp_scales(policy: AbstractPolicy = Thompson()) -> Method:
    return lambda dim, evaluations: EGP(Cube(dim), _scales(evaluations), policy)


def _alone(number: int, policy: AbstractPolicy = Thompson(), **options: Any) -> Method:
    def method(dim: int, evaluations: int) -> EGP:
        expert = _expert(evaluations, **options)
        kernel = papers(dim)[number]
        return EGP(Cube(dim), eqx.tree_at(lambda e: e.kernel, expert, kernel), policy)

    return method


def _bayesian(dim: int, evaluations: int) -> EGP:
    expert = _expert(evaluations, kernel=SquaredExponential(START))
    return EGP(Cube(dim), Marginal(expert))


def _warped(policy: AbstractPolicy) -> Method:
    def method(dim: int, evaluations: int) -> EGP:
        model = Ensemble.warped(
            dim, INITIAL + evaluations, size=FEATURES, noise=NOISE, refit_every=REFIT
        )
        return EGP(Cube(dim), model, policy)

    return method


def _expert(evaluations: int, **options: Any) -> Fitted:
    options = {"size": FEATURES, "noise": NOISE, "refit_every": REFIT} | options
    return Fitted(INITIAL + evaluations, **options)


METHODS: dict[str, Method] = {
    "EGP-TS": _egp(),
    "GP-TS, SE": _alone(0),
    "GP-TS, SE ARD": _alone(1),
    "GP-TS, Matern 3/2": _alone(2),
    "GP-TS, Matern 5/2": _alone(3),
    "BanditBO": _egp(Largest()),
    "EXP3BO": lambda dim, evaluations: EXP3BO(Cube(dim), _ensemble(dim, evaluations)),
    "GP-EI": _alone(0, EI(), inference=Exact()),
    "GP-UCB": _alone(0, UCB(BETA), inference=Exact()),
    "EGP-TS, 11 scales": _egp_scales(),
    "BanditBO, 11 scales": _egp_scales(Largest()),
    "EXP3BO, 11 scales": lambda dim, evaluations: EXP3BO(Cube(dim), _scales(evaluations)),
    "fully Bayesian GP-TS": _bayesian,
    "EGP-EI": _egp(Drawn(EI()), inference=Exact()),
    EXACT: _egp(inference=Exact()),
    "EGP-TS, warped": _warped(Thompson()),
    "EGP-EI, warped": _warped(Drawn(EI())),
    MIXTURE: _warped(EI()),
    FIRST: lambda dim, evaluations: BO(Cube(dim), INITIAL + evaluations),
    PRINTED: _egp(refit_every=AS_PRINTED[PRINTED]),
    PRINTED_ALONE: _alone(1, refit_every=AS_PRINTED[PRINTED_ALONE]),
}
#: Methods of other libraries.
OTHERS = {BOTORCH: PEERS[peers.LOG_EI], TPE: PEERS[TPE], CMA: PEERS[CMA]}
QUICK = ("EGP-TS", "GP-TS, SE")
SINGLE = tuple(name for name in METHODS if name.startswith("GP-TS"))
#: What Fig. 1, 2 and 6 claim: a method, and those that it is no worse than; None is the best of SINGLE.
CLAIMS: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    ("EGP-TS", (None, "BanditBO", "EXP3BO", "GP-EI")),
    ("EGP-TS, 11 scales", ("BanditBO, 11 scales", "EXP3BO, 11 scales", "fully Bayesian GP-TS")),
    ("EGP-EI", ("GP-EI",)),
    ("EGP-TS", (EXACT,)),
    (EXACT, ("EGP-TS",)),
    ("EGP-TS, warped", (BOTORCH,)),
    ("EGP-EI, warped", (BOTORCH,)),
    (MIXTURE, (BOTORCH,)),
    (PRINTED, (PRINTED_ALONE,)),
)
#: Methods that are to be below searches without a Gaussian process, and the searches.
BELOW: tuple[tuple[str, tuple[str, ...]], ...] = ((MIXTURE, (TPE, CMA)), (FIRST, (TPE, CMA)))


def claims(name: str, ends: dict[str, np.ndarray], margin: float | None = None) -> dict[str, Check]:
    """Those of `CLAIMS` about methods that ran, from where each run ended.

    The margin is a share of the rival's mean, or as large as `margin`.
    """
    found: dict[str, Check] = {}
    for ours, rivals in CLAIMS:
        for rival in rivals:
            if rival is None and set(SINGLE) <= set(ends):
                rival = min(SINGLE, key=lambda m: ends[m].mean())
            if ours in ends and rival in ends:
                claim = f"{name}: {ours} no worse than {rival} "
                if margin is None:
                    found[f"{claim}{BY}, ratio"] = within(ends[ours], ends[rival])
                else:
                    claim += f"by more than {margin:g}, difference"
                    found[claim] = difference(ends[ours], ends[rival], most=margin)
    for ours, rivals in BELOW:
        for rival in rivals:
            if ours in ends and rival in ends:
                found[f"{name}: {ours} below {rival}, difference"] = below(ends[ours], ends[rival])
    return found


def beside(others: Iterable[str]) -> tuple[str, ...]:
    """The methods with a claim about one of those."""
    among = set(others)
    compared = {ours for ours, rivals in (*CLAIMS, *BELOW) if among & set(rivals)}
    return tuple(name for name in METHODS if name in compared)
