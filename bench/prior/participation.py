"""A prior that agents learn together if only some send in a round, or if all send a simpler form.

Functions are of `prior.families`. Three hundred agents begin with three random evaluations each. A share
of them is drawn anew for each round. They alone send, and all agents hear the broadcast. Regret is in
deviations of the functions, the mean over agents.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from bench.claims import Check, at_most
from bench.prior.families import FAMILIES, regret, result
from bench.prior.setting import AFTER, CLAIMED, ROUNDS, methods
from bench.runner import Experiment, Options, Result, progress
from jaxbo.algos.learned_prior import LearnedPrior
from jaxbo.domains.base import Cube
from jaxbo.types import Key

AGENTS = 300
NAMES = ("alike", "half", "opposed")
#: How many agents send any covariance in a round.
SENDERS = {"all": AGENTS, "a third": AGENTS // 3, "a tenth": AGENTS // 10, "a fiftieth": 6}
SHARED = {f"any covariance, {which}": number for which, number in SENDERS.items()}
RANK, VARIANCE = "rank 10, all", "one variance, all"
#: Method -> its name in `setting.methods`, and how many agents send in a round.
METHODS = {
    VARIANCE: ("learned prior, one variance", AGENTS),
    RANK: ("learned prior, rank 10", AGENTS),
    **{name: (CLAIMED, number) for name, number in SHARED.items()},
}
#: The one that the claims are about: it sends less than half of the numbers of `RANK`.
FEW = "any covariance, a tenth"


def algorithm(method: str) -> LearnedPrior:
    """The learned prior in that form."""
    found = methods(Cube(2), AGENTS)[METHODS[method][0]]
    assert isinstance(found, LearnedPrior)
    return found


def numbers(method: str) -> float:
    """How many numbers an agent sends in a round, on average."""
    made = algorithm(method)

    def message(key: Key) -> PyTree:
        shared = made.setup(key)
        return made.message(key, shared, made.join(key, shared, jnp.zeros((), int)))

    sent = jax.tree.leaves(jax.eval_shape(message, jr.key(0)))
    return METHODS[method][1] / AGENTS * sum(leaf.size for leaf in sent)


def drawn(key: Key, senders: int) -> Bool[Array, "rounds agents"]:
    """Whether each agent sends in each round. So many do, drawn anew."""
    return jax.vmap(lambda one: jr.permutation(one, AGENTS) < senders)(jr.split(key, ROUNDS))


@functools.cache
def program(method: str) -> Callable[[Array, Array], Array]:
    """Regret [runs evaluations] of runs, from their keys and the family."""
    senders = METHODS[method][1]

    def one(key: Key, family: Float[Array, "3"]) -> Float[Array, " evaluations"]:
        run_key, senders_key = jr.split(key)
        present = None if senders == AGENTS else drawn(senders_key, senders)
        return regret(algorithm(method), AGENTS, ROUNDS, run_key, family, present)

    # All runs at once would hold many candidates for each of their agents.
    return jax.jit(lambda keys, family: jax.lax.map(lambda key: one(key, family), keys))


def _run(options: Options) -> Result:
    runs = options.runs_or(20, 2)
    names = options.problems_or(NAMES, NAMES[:1])
    # Other functions than those of six runs that were looked at before the claims were made.
    keys = jr.split(jr.fold_in(jr.key(options.seed), AGENTS), runs)
    kinds = [(name, method) for name in names for method in METHODS]
    found = {
        (name, method): np.asarray(program(method)(keys, jnp.asarray(FAMILIES[name], float)))
        for name, method in progress(kinds, "prior-participation")
    }
    made = result(found, checks(found), AGENTS)
    sent = {"numbers an agent and round": {method: numbers(method) for method in METHODS}}
    return dataclasses.replace(made, settings=dict(made.settings) | sent)


def checks(regret: dict[tuple[str, str], np.ndarray]) -> dict[str, Check]:
    """If a tenth sends any covariance, regret is no more than if all send a simpler form."""
    found = {}
    for name in dict.fromkeys(name for name, _ in regret):
        for rival in (RANK, VARIANCE):
            for n in AFTER:
                claim = f"{name}, beside {rival}: after {n}, {FEW}, no more regret, ratio"
                few, more = regret[name, FEW], regret[name, rival]
                found[claim] = at_most(few[:, n - 1], more[:, n - 1], 1.0)
    return found


EXPERIMENT = Experiment(
    source="prior-participation",
    about="a learned prior where only some agents send in a round, or all send a simpler form",
    time="30 min",
    run=_run,
    problems=NAMES,
)
