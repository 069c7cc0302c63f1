"""Methods and claims of the experiments about a prior that agents learn together.

All methods begin at the same random points, and have the same features. `EI` is the learned prior without
trust: each agent searches alone by expected improvement.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from bench.claims import Check, at_most
from bench.common.alike import INITIAL, KERNEL
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.fts import FTS
from jaxbo.algos.learned_prior import LearnedPrior
from jaxbo.algos.rgpe import RGPE
from jaxbo.algos.taf import TAF
from jaxbo.algos.ts import TS
from jaxbo.domains.base import AbstractDomain
from jaxbo.kernels.choosing.ranking import Ranked
from jaxbo.kernels.models.fitted import Exact, Fitted
from jaxbo.kernels.models.pooled import Pooled
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import AbstractKernel

ROUNDS = 17
FEATURES = 100
#: Evaluations after which regret is looked at.
AFTER = (4, 5, 7, 10, 20)
#: Evaluations -> how many times the best rival's regret the learned prior's may be.
TIMES = {5: 1 / 2, 10: 2 / 3}
#: The same against the best lone method, where nothing is in common.
LOST = 1.05
#: The same against the bound: all observations in a process that knows what agents have in common.
NEAR = {5: 1.5, 10: 2.0}
BOUND = "pooled bound"
#: The form of S that the claims are about: any covariance.
CLAIMED = "learned prior, full"
ALONE = ("TS", "EI")
OWN, RANKED, AGREED = "FTS, own models", "FTS, ranked peers", "FTS, agreed models"
RIVALS = ("FTS", OWN, RANKED, AGREED, "RGPE", "TAF")


def methods(
    domain: AbstractDomain,
    agents: int,
    *,
    kernel: AbstractKernel = KERNEL,
    noise: float = 1e-3,
    candidates: int = 500,
) -> dict[str, AbstractAlgorithm]:
    """Federated and lone methods on the same features, by name."""
    model = Fixed(kernel, FEATURES, noise)

    def learned(**options: Any) -> LearnedPrior:
        total = INITIAL + ROUNDS
        return LearnedPrior(domain, agents, total, features=model, candidates=candidates, **options)

    return {
        "TS": TS(domain, agents, model, candidates),
        "EI": learned(rank=0, trust=0.0),
        "FTS": FTS(domain, agents, features=model, candidates=candidates),
        "learned prior, one variance": learned(rank=0),
        "learned prior, rank 10": learned(rank=10),
        CLAIMED: learned(rank=FEATURES + 1),
    }


def rivals(
    domain: AbstractDomain,
    agents: int,
    *,
    kernel: AbstractKernel = KERNEL,
    noise: float = 1e-3,
    candidates: int = 500,
) -> dict[str, AbstractAlgorithm]:
    """FTS in its other settings, RGPE and TAF, on the same features, with a message every round.

    Their own models have hyperparameters that are fitted to an agent's values, but for those that FTS's
    agents agree on.
    """
    model, total = Fixed(kernel, FEATURES, noise), INITIAL + ROUNDS
    common: dict[str, Any] = {"features": model, "candidates": candidates}
    exact = Fitted(total, inference=Exact())

    def settings(**options: Any) -> FTS:
        return FTS(domain, agents, **common, **options)

    return {
        OWN: settings(own=Fitted(total)),
        RANKED: settings(own=Fitted(total), peers=Ranked()),
        AGREED: settings(own=Fitted(total, refit_every=None), pooled=Pooled()),
        "RGPE": RGPE(domain, agents, exact, **common),
        "TAF": TAF(domain, agents, exact, **common),
    }


def claims(
    name: str,
    regret: dict[str, np.ndarray],
    others: Iterable[str],
    times: dict[int, float],
    ours: str = CLAIMED,
) -> dict[str, Check]:
    """The learned prior's regret is at most so many times the best rival's.

    `regret` has a matrix [runs evaluations] for each method; `times` has a factor for each number of
    evaluations.
    """
    found, others = {}, tuple(others)
    for n, factor in times.items():
        best = min(others, key=lambda rival: regret[rival][:, n - 1].mean())
        among = ", ".join(others)
        claim = f"{name}: after {n}, at most {factor:.3g} times the best regret of {among}, ratio"
        found[claim] = at_most(regret[ours][:, n - 1], regret[best][:, n - 1], factor)
    return found
