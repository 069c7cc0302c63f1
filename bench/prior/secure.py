"""The price of a server that sees sums alone: noise of owners, in shares, beside noise of the server.

    functions         0.7 common + 0.3 own, of `alike`; 50 agents, three first evaluations, five queries
    alone             EI, on the same features
    server            `DPLearnedPrior`, three releases, every agent drawn: the server draws the noise
    shares of n       the same ε, in whole numbers modulo 2^32: n owners suffice for the noise

One owner may collude, and all 50 take part. So the deviation of the noise is √(50 / (n - 1)) times the
server's. All runs of a row share functions and first points with the runs of the others. δ is 1e-5, the
bound on messages √3, location 0, and the guess of the scale of values is right. Regret is in deviations
of the functions, mean over agents.

Claims, made before the first run: with the same ε shares of 50 owners cost at most 5 % of the regret, and
shares of 34 owners, of whom 16 may drop out, at most 10 %.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float

from bench.claims import Check, at_most
from bench.common import alike
from bench.common.panels import figure
from bench.common.text import interval
from bench.prior.setting import INITIAL, KERNEL
from bench.runner import Experiment, Options, Result, parts
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.dp_learned_prior import DPLearnedPrior
from jaxbo.domains.base import Cube
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.privacy import accounting, distributed
from jaxbo.privacy.distributed import SecureSum
from jaxbo.privacy.mechanism import Mechanism, Poisson
from jaxbo.types import Key, Scalar

AGENTS, ROUNDS, RELEASES, FEATURES, DELTA = 50, 5, 3, 50, 1e-5
RUNS, BATCH = 200, 10
#: Queries beyond the first points after which regret is looked at.
AFTER = (1, 3, 5)
LOSSES = (4.0, 1.0)
#: Owners who suffice -> how many times the regret with noise of the server the regret may be.
MOST = {50: 1.05, 34: 1.1}


class InShares(Mechanism):
    """The release of a secure sum, all owners in one process. Masks are left out: they cancel."""

    secure: SecureSum = eqx.field(static=True, default=SecureSum(AGENTS))

    def deviation(self, weights: Float[Array, "regions agents"]) -> Scalar:
        return super().deviation(weights) * self.secure.excess(weights.shape[1])

    def release(
        self,
        key: Key,
        messages: Float[Array, "agents features"],
        weights: Float[Array, "regions agents"],
        present: Bool[Array, " agents"],
    ) -> Float[Array, "regions features"]:
        regions, agents = weights.shape
        sample_key, round_key, noise_key = jr.split(key, 3)
        drawn = self.sampling.draw(sample_key, agents) & present
        parts = jax.vmap(self.part, in_axes=(0, 1))(messages, weights).reshape(agents, -1)
        sensitivity = self.sensitivity(weights)
        keys = jr.split(round_key, agents)
        numbers = jax.vmap(distributed.rounded, in_axes=(0, 0, None))(keys, parts, sensitivity)
        numbers = jnp.where(drawn[:, None], numbers, 0)
        # Of thousands of units: a rounded Gaussian is the discrete one but for less than a millionth.
        share = jnp.sqrt(self.secure.variance(self.z, parts.shape[1]))
        noise = jnp.round(share * jr.normal(noise_key, parts.shape)).astype(jnp.int32)
        added = (numbers + noise).astype(jnp.uint32)
        total = jnp.sum(jnp.where(present[:, None], added, 0), axis=0, dtype=jnp.uint32)
        return distributed.decoded(total, sensitivity).reshape(regions, -1)


def label(epsilon: float, shares: int | None = None) -> str:
    """The name of a private method in pictures and tables."""
    return f"ε = {epsilon:g}, " + ("server" if shares is None else f"shares of {shares}")


METHODS = (
    "alone",
    *(label(epsilon, shares) for epsilon in LOSSES for shares in (None, *MOST)),
)


@functools.cache
def noise(epsilon: float) -> float:
    """z of three releases that cost so much together."""
    return accounting.noise_for(epsilon, DELTA, 1.0, RELEASES)


def method(name: str) -> AbstractAlgorithm:
    """One of `METHODS`."""

    def private(mechanism: Mechanism, **options: Any) -> DPLearnedPrior:
        model = Fixed(KERNEL, FEATURES, 1e-3, standardize=False)
        known: dict[str, Any] = {"features": model, "candidates": 500, **options}
        known |= {"location": 0.0, "scale": 1.0}
        total = INITIAL + ROUNDS
        return DPLearnedPrior(
            Cube(2), AGENTS, total, mechanism=mechanism, releases=RELEASES, **known
        )

    def of(epsilon: float, shares: int | None) -> DPLearnedPrior:
        known = noise(epsilon), INITIAL**0.5, Poisson(1.0)
        if shares is None:
            return private(Mechanism(*known))
        return private(InShares(*known, secure=SecureSum(shares)))

    named = {label(e, shares): (e, shares) for e in LOSSES for shares in (None, *MOST)}
    if name == "alone":
        return private(Mechanism(0.0, np.inf, Poisson(1.0)), trust=0.0)
    return of(*named[name])


def _run(options: Options) -> Result:
    runs = options.runs_or(RUNS, 4)
    keys = jr.split(jr.key(options.seed), runs)
    measures: dict[str, Callable[[], Any]] = {
        f"{AGENTS} agents, {name}": functools.partial(
            alike.regret, method(name), AGENTS, ROUNDS, keys, BATCH
        )
        for name in METHODS
    }
    curves, folder = parts(options, "prior-secure", (runs,), measures)
    return Result(
        settings={
            "runs": runs,
            "agents": AGENTS,
            "initial": INITIAL,
            "rounds": ROUNDS,
            "releases": RELEASES,
            "features": FEATURES,
            "delta": DELTA,
            "z": {f"{epsilon:g}": noise(epsilon) for epsilon in LOSSES},
            "S": INITIAL**0.5,
            "times the server's noise": {str(n): SecureSum(n).excess(AGENTS) for n in MOST},
        },
        curves=curves,
        figure=figure(
            curves,
            METHODS,
            (f"{AGENTS} agents",),
            xlabel="queries",
            ylabel="regret, deviations",
        ),
        checks=checks(curves),
        unit="regret, deviations",
        headers=("method", *(f"after {n}" for n in AFTER)),
        rows=[_row(name, curves[f"{AGENTS} agents, {name}"]) for name in METHODS],
        scratch=folder,
    )


def _row(name: str, regrets: np.ndarray) -> tuple[str, ...]:
    return (name, *(interval(regrets[:, n - 1]) for n in AFTER))


def checks(curves: dict[str, np.ndarray]) -> dict[str, Check]:
    """Shares cost little more regret than noise of the server, for the same ε."""
    found = {}
    for epsilon in LOSSES:
        server = curves[f"{AGENTS} agents, {label(epsilon)}"]
        for shares, most in MOST.items():
            ours = curves[f"{AGENTS} agents, {label(epsilon, shares)}"]
            for n in AFTER:
                claim = (
                    f"{label(epsilon, shares)}, after {n}: regret over that of the server's noise"
                )
                found[claim] = at_most(ours[:, n - 1], server[:, n - 1], most)
    return found


EXPERIMENT = Experiment(
    source="prior-secure",
    about="noise of owners in shares, for secure sums, beside noise of the server",
    time="4 min",
    run=_run,
)
