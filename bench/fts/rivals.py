"""FTS and its rivals on real objectives: the common parts of `fts-landmine`, `fts-har` and their kin.

    target f in {0, ..., 5}:  3 initial points, then rounds of TS, FTS, RGPE or TAF;   p_t = 1 - 1/t²
    peer n ≠ f:  one message after 50 observations of its own TS: M numbers to FTS, M + M² to the others

As the authors have it: messages on M features of length scale 0.01 with noise 1e-6; the target's own
samples on 200 features with hyperparameters refitted by maximum evidence every 5 rounds. That each
coordinate has a length scale of its own is our choice. The target's own model in RGPE and TAF is the
exact process, fitted likewise.

Agents 0 to 5 of a federation are the targets; then come all owners as they stand after their own TS.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.common import messages
from bench.fts.peers import start
from jaxbo import metrics, plotting
from jaxbo.algos.base.federated import FederatedState
from jaxbo.algos.fts import FTS
from jaxbo.algos.rgpe import RGPE
from jaxbo.algos.taf import TAF
from jaxbo.algos.ts import TS
from jaxbo.domains.base import AbstractDomain, Cube
from jaxbo.kernels.choosing.ranking import Ranked
from jaxbo.kernels.models.fitted import Exact, Fitted
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.schedules import InverseSquare
from jaxbo.types import Key

TARGETS, INITIAL, OBSERVATIONS = 6, 3, 50
FEATURES, QUICK_FEATURES = (50, 100, 150, 200), (100,)
ALONE, FEDERATED = "TS", ("FTS", "RGPE", "TAF")
#: Beyond the paper: FTS that learns P_N from ranks, and FTS whose peers keep observing (Fig. 4).
RANKED, GROWING = "FTS, ranked peers", "FTS, peers go on"
#: FTS with `messages.longer`.
LONGER = "FTS, longer length scale"
OWN_FEATURES, REFIT = 200, 5
#: Figures of single targets are at this M.
SHOWN = 100
COLORS = {"FTS": plotting.BLUE, "RGPE": plotting.PALETTE[2], "TAF": plotting.PALETTE[3]}


class FederatedProblem(NamedTuple):
    """So many owners, each with an objective of so many parameters; the first are the targets.

    Without a `domain` it is the cube.
    """

    owners: int
    dim: int
    targets: int = TARGETS
    domain: AbstractDomain | None = None


def described(runs: int, rounds: int, sizes: tuple[int, ...]) -> dict[str, Any]:
    """The settings that a result states."""
    return {
        "initializations": runs,
        "rounds": rounds,
        "initial points": INITIAL,
        "targets": TARGETS,
        "observations of a peer": min(OBSERVATIONS, INITIAL + rounds),
        "M": sizes,
        "length scale of the messages": messages.LENGTH_SCALE,
        "noise of the messages": messages.NOISE,
        "features of the target's own model": OWN_FEATURES,
        "length scales of the target's own model": "one a coordinate",
        "rounds between refits": REFIT,
    }


def domain_of(problem: FederatedProblem) -> AbstractDomain:
    """Where all methods look."""
    return Cube(problem.dim) if problem.domain is None else problem.domain


def own_model(problem: FederatedProblem, rounds: int) -> Fitted:
    """A target's model of its own objective, the same alone and in FTS."""
    kernel = SquaredExponential(np.full(problem.dim, 0.2))
    return Fitted(INITIAL + rounds, kernel, size=OWN_FEATURES, refit_every=REFIT)


def alone(problem: FederatedProblem, rounds: int) -> TS:
    """All owners, each for itself: the targets' TS, and the peers' past."""
    return TS(domain_of(problem), problem.owners, own_model(problem, rounds))


def federated(problem: FederatedProblem, kind: str, features: int, rounds: int) -> FTS | RGPE | TAF:
    """FTS, a variant of it, or a rival."""
    domain, agents = domain_of(problem), problem.targets + problem.owners
    own = own_model(problem, rounds)
    model = messages.longer if kind == LONGER else messages.model
    common = {"features": model(features), "once": True, "targets": problem.targets}
    if kind in ("RGPE", "TAF"):
        exact = eqx.tree_at(lambda model: model.inference, own, Exact())
        transfer = {"RGPE": RGPE, "TAF": TAF}[kind]
        return transfer(domain, agents, exact, peers=others(problem) > 0, **common)
    peers: Any = others(problem)
    if kind == RANKED:
        peers = Ranked(start=peers)
    elif kind == GROWING:
        # Who has nobody to listen to goes on with its own TS.
        peers = np.concatenate([peers, np.zeros((problem.owners, agents))])
        own = own_model(problem, OBSERVATIONS + rounds)
        common = {"features": common["features"]}
    return FTS(domain, agents, own=own, peers=peers, mixing=InverseSquare(), **common)


def others(problem: FederatedProblem) -> Float[np.ndarray, "targets agents"]:
    """P_N of each target: uniform over the owners that are not itself."""
    none = np.zeros((problem.targets, problem.targets))
    return np.concatenate([none, 1 - np.eye(problem.targets, problem.owners)], axis=1)


def informed(
    algorithm: FTS | RGPE | TAF,
    key: Key,
    queries: Float[Array, "rows owners dim"],
    values: Float[Array, "rows owners"],
) -> FederatedState:
    """The state before the first round: peers know the first of their observations, targets nothing.

    If peers go on, targets are agents like others: they know their initial points, and all own models
    have hyperparameters fitted to their knowledge.
    """
    queries, values = queries[:OBSERVATIONS], values[:OBSERVATIONS]
    targets = algorithm.agents - queries.shape[1]
    mine, seen = queries[:, :targets], values[:, :targets]
    known = (jnp.arange(len(values)) < given_points(algorithm))[:, None]
    # A value that is NaN at a point would be a failure there.
    queries = jnp.concatenate([jnp.where(known[..., None], mine, jnp.nan), queries], axis=1)
    values = jnp.concatenate([jnp.where(known, seen, jnp.nan), values], axis=1)
    if not isinstance(algorithm, FTS):
        return algorithm.warm_start(algorithm.init(key), queries, values)
    if algorithm.once:
        peers = eqx.tree_at(lambda a: a.own, algorithm, None)
        return start(peers, algorithm, key, queries, values)
    state = algorithm.warm_start(algorithm.init(key), queries, values)
    own = algorithm.own
    assert isinstance(own, Fitted)
    refitted = jax.vmap(lambda belief: own.refit(state.shared.own, belief))
    return eqx.tree_at(lambda s: s.clients.beliefs.own, state, refitted(state.clients.beliefs.own))


def given_points(algorithm: TS | FTS | RGPE | TAF) -> int:
    """How many initial points the targets know before a run begins, which are then not its own."""
    return INITIAL if isinstance(algorithm, FTS) and not algorithm.once else 0


def sent(problem: FederatedProblem, kind: str, features: int) -> int:
    """Floats in a message, read off its shape."""
    algorithm = federated(problem, kind, features, OBSERVATIONS)
    state = jax.eval_shape(algorithm.init, jr.key(0))
    client = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), state.clients
    )
    return metrics.floats(jax.eval_shape(algorithm.message, jr.key(0), state.shared, client))


def draw_messages(
    ax: Any,
    ends: Mapping[tuple[str, int], np.ndarray],
    sent: Mapping[tuple[str, int], int],
    published: Mapping[tuple[str, int], float],
    unit: str,
) -> None:
    """Fig. 2: the result, by method and M, against the size of messages; squares are the authors'."""
    for kind, color in COLORS.items():
        methods = [method for method in ends if method[0] == kind]
        floats = [sent[method] for method in methods]
        means, errors = zip(*(metrics.mean_and_error(ends[m]) for m in methods), strict=True)
        ax.errorbar(floats, means, errors, fmt="o", color=color, capsize=4, label=kind)
        if published:
            style = {"marker": "s", "facecolor": "none", "edgecolor": color}
            theirs = [published[method] for method in methods]
            ax.scatter(floats, theirs, **style, label=f"{kind}, the authors")
    ax.axhline(ends[ALONE, 0].mean(), color="0.5", ls="--", label="TS")
    if published:
        ax.axhline(published[ALONE, 0], color="0.5", ls=":", label="TS, the authors")
    ax.set(xlabel="floats an agent sends, once", ylabel=f"{unit} at the end", xscale="log")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, ncols=4, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1))
