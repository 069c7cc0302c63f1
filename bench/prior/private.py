"""The price of privacy for a prior that agents learn together, by their number.

    functions      0.7 common + 0.3 own, of `alike`
    alone          EI, on the same features
    learned        `LearnedPrior`, one round after the other, without privacy
    no noise       `DPLearnedPrior` without noise or clipping: one variance, three rounds
    ε = 4, ε = 1   `DPLearnedPrior`, three releases, every agent drawn
    own units      ε = 4 and 1 with no guess: each agent measures values in a unit of its own
    wrong          ε = 4 with a guess of the scale of values that is wrong by a factor of 2, 3 or 10
    DP-FTS-DE      the same ε, three releases, every agent drawn; TS is what its agents do alone

Agents begin with three random evaluations. Regret is in deviations of the functions, mean over agents. δ
is 1e-5. Fixed beforehand are location 0, a guess of the scale of values, which is right unless a row says
otherwise, and the bound on messages, √3 by the rule of `DPLearnedPrior`. DP-FTS-DE has the paper's
synthetic setting of two regions and S = 11, but for the exact sensitivity, which is less noise. Its
values have the same scale.

The share of the gain that is kept is (alone - private) / (alone - learned). It holds to be at least some
share where (1 - share) alone + share learned - private is above 0 by the 95 % interval of the runs. It
is undecided if alone - learned, the gain, is not above 0 by such an interval.
"""

import functools
from typing import Any

import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.claims import Check, Verdict, below, ratio
from bench.common import alike
from bench.common.panels import figure
from bench.common.text import interval, number
from bench.prior.setting import INITIAL, KERNEL
from bench.runner import Experiment, Options, Result, parts
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.dp_fts_de import DPFTSDE
from jaxbo.algos.dp_learned_prior import DPLearnedPrior
from jaxbo.algos.learned_prior import LearnedPrior
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Cube, Regions
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.privacy import accounting
from jaxbo.privacy.mechanism import Mechanism, Poisson

ROUNDS, RELEASES, FEATURES, DELTA = 5, 3, 50, 1e-5
#: Queries beyond the first points after which regret is looked at.
AFTER = (1, 3, 5)
#: Agents -> runs, and how many of them are computed at the same time.
RUNS = {"50": (60, 10), "500": (30, 1), "5000": (4, 1)}
LOSSES = (4.0, 1.0)
REFERENCES = ("learned", "no noise")
#: Agents and ε -> the share of the gain that must be kept.
KEPT = {("500", 1.0): 0.9, ("50", 4.0): 2 / 3}


def label(epsilon: float, method: str = "") -> str:
    """The name of a private method in pictures and tables."""
    return f"{method}ε = {epsilon:g}"


RIVAL = "DP-FTS-DE, "
OWN = ", own units"
#: Guesses of the scale of values that are wrong, and by how much.
WRONG = {
    f"{label(LOSSES[0])}, {name} the scale": factor
    for name, factor in (
        ("twice", 2.0),
        ("half", 0.5),
        ("three times", 3.0),
        ("a third of", 1 / 3),
        ("ten times", 10.0),
        ("a tenth of", 0.1),
    )
}
METHODS = (
    "alone",
    *REFERENCES,
    *(label(e) for e in LOSSES),
    *(label(e) + OWN for e in LOSSES),
    *WRONG,
    "TS",
    *(label(e, RIVAL) for e in LOSSES),
)
#: What the picture has.
SHOWN = tuple(name for name in METHODS if name not in WRONG)


@functools.cache
def noise(epsilon: float) -> float:
    """z of three releases that cost so much together."""
    return accounting.noise_for(epsilon, DELTA, 1.0, RELEASES)


def method(name: str, agents: int) -> AbstractAlgorithm:
    """One of `METHODS`."""
    domain, total = Cube(2), INITIAL + ROUNDS
    model = Fixed(KERNEL, FEATURES, 1e-3, standardize=False)
    common: dict[str, Any] = {"features": model, "candidates": 500}

    def private(z: float, S: float, scale: float | None = 1.0, **options: Any) -> DPLearnedPrior:
        known = common | options
        if scale is not None:
            known |= {"location": 0.0, "scale": scale}
        mechanism = Mechanism(z, S, Poisson(1.0))
        return DPLearnedPrior(
            domain, agents, total, mechanism=mechanism, releases=RELEASES, **known
        )

    def rival(epsilon: float) -> DPFTSDE:
        mechanism = Mechanism(noise(epsilon), 11.0, Poisson(1.0), exact=True)
        regions = Regions.of(2, 2)
        return DPFTSDE(domain, agents, mechanism, regions=regions, releases=RELEASES, **common)

    fixed = {
        "alone": lambda: private(0.0, np.inf, trust=0.0),
        "learned": lambda: LearnedPrior(domain, agents, total, **common),
        "no noise": lambda: private(0.0, np.inf),
        "TS": lambda: TS(domain, agents, model, 500),
    }
    noisy = {
        label(e) + name: functools.partial(private, noise(e), INITIAL**0.5, scale)
        for e in LOSSES
        for name, scale in (("", 1.0), (OWN, None))
    }
    wrong = {
        name: functools.partial(private, noise(LOSSES[0]), INITIAL**0.5, scale=scale)
        for name, scale in WRONG.items()
    }
    rivals = {label(e, RIVAL): functools.partial(rival, e) for e in LOSSES}
    return (fixed | noisy | wrong | rivals)[name]()


def regret(agents: int, name: str, keys: Array, batch: int) -> Float[np.ndarray, "runs rounds"]:
    """The mean regret of agents in each run, after each round."""
    return alike.regret(method(name, agents), agents, ROUNDS, keys, batch)


def _run(options: Options) -> Result:
    names = options.problems_or(RUNS, ("50",))
    runs = {agents: options.runs_or(RUNS[agents][0], 4) for agents in names}
    measures = {
        f"{agents} agents, {method}": functools.partial(
            regret,
            int(agents),
            method,
            jr.split(jr.key(options.seed), runs[agents]),
            RUNS[agents][1],
        )
        for agents in names
        for method in METHODS
    }
    curves, folder = parts(options, "prior-private", tuple(runs.values()), measures)
    return Result(
        settings={
            "runs": runs,
            "initial": INITIAL,
            "rounds": ROUNDS,
            "releases": RELEASES,
            "features": FEATURES,
            "delta": DELTA,
            "z": {label(e): noise(e) for e in LOSSES},
            "S": INITIAL**0.5,
            "guesses of the scale": WRONG,
        },
        curves=curves,
        figure=figure(
            curves,
            SHOWN,
            tuple(f"{agents} agents" for agents in names),
            xlabel="queries",
            ylabel="regret, deviations",
        ),
        checks=checks(curves),
        unit="regret, deviations",
        headers=(
            "agents",
            "method",
            *(f"after {n}" for n in AFTER),
            "kept of learned, of no noise",
        ),
        rows=[_row(agents, method, curves) for agents in names for method in METHODS],
        scratch=folder,
    )


def _row(agents: str, method: str, curves: dict[str, np.ndarray]) -> tuple[str, ...]:
    def at(name: str, n: int) -> np.ndarray:
        return curves[f"{agents} agents, {name}"][:, n - 1]

    last = AFTER[-1]
    shares = (
        kept(at("alone", last), at(reference, last), at(method, last), 0.5).figure
        for reference in REFERENCES
    )
    cells = (interval(at(method, n)) for n in AFTER)
    return (agents, method, *cells, ", ".join(map(number, shares)))


# ---------------------------------------------------------------- claims


def kept(alone: np.ndarray, learned: np.ndarray, private: np.ndarray, share: float) -> Check:
    """Whether at least that share of the gain is kept; the figure is the share that is."""
    check = ratio(alone - private, alone - learned, least=share)
    if not below(learned, alone).holds:  # there may be no gain, of which no share is kept
        return check._replace(outcome=Verdict.UNDECIDED, needed=None)
    return check


def checks(curves: dict[str, np.ndarray]) -> dict[str, Check]:
    """The private form keeps most of the gain of the learned prior, and of its own without noise."""
    found = {}
    for (agents, epsilon), share in KEPT.items():
        if f"{agents} agents, alone" not in curves:
            continue
        for reference in REFERENCES:
            for n in AFTER:
                names = "alone", reference, label(epsilon)
                claim = f"{agents} agents, ε = {epsilon:g}, after {n}: {share:.3g} of the gain kept"
                at = (curves[f"{agents} agents, {name}"][:, n - 1] for name in names)
                alone, learned, private = at
                found[f"{claim}, {reference}"] = kept(alone, learned, private, share)
    return found


EXPERIMENT = Experiment(
    source="prior-private",
    about="the price of privacy for a learned prior, by the number of agents, beside DP-FTS-DE",
    time="30 min",
    run=_run,
    problems=tuple(RUNS),
)
