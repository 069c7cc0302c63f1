"""Chains that learn a structure, from two starts: no pairs at all, or the true pairs or triples.

    the functions of `dec-structure`; values at 110, 210 and 410 uniform points, without noise
    R-hat² = (within (n - 1) / n + between / n) / within       of the log evidence, 4 sequences of n moves

A function has two chains. The first starts without pairs and with a noise of a tenth of the variance, the
second with the true pairs and their variances. Functions of triples have chains whose factors hold up to
three variables, and three pairs a triple. The sequences are the third and the fourth quarter of
both chains. R-hat is 1 if all are alike, and large if a chain is still where it started. The length scale
is given.

    found    of the true pairs, how many share a factor, mean over the last half of the moves
    false    of the pairs that share a factor, how many are not true
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.claims import Check, difference, on_average
from bench.common.search import NOISE
from bench.common.text import number
from bench.dec.functions import LENGTH_SCALE, draw
from bench.runner import Experiment, Options, Result, parts
from jaxbo import metrics, plotting
from jaxbo.domains.base import Cube
from jaxbo.kernels.additive import chain
from jaxbo.kernels.additive.chain import Logs, Scopes
from jaxbo.kernels.additive.decomposed import Decomposed
from jaxbo.kernels.additive.structure import Sampled
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.types import Key

#: The number of variables, and the most variables of a factor.
PROBLEMS = {"20-D": (20, 2), "50-D": (50, 2), "100-D": (100, 2), "20-D-triples": (20, 3)}
QUICK = {"6-D": (6, 2)}
#: Observations, and moves of each chain: a move takes the cube of the observations.
MOVES = {110: 4000, 210: 6000, 410: 2000}
RUNS = 3
EMPTY, TRUTH = "from no pairs", "from the true pairs"
#: Factors of noise and variances from which the chains start: the last is of all pairs' variance.
STARTS = {EMPTY: (0.1 / NOISE, 1.0, 1.0), TRUTH: (1.0, 0.5, 2.0)}
#: The claims: R-hat, and how many nats the evidence of the second chain is above that of the first.
MIXED, APART = 1.2, 5.0


class Walk(NamedTuple):
    """The log evidence after each move, and the shares of pairs that were found and of false pairs."""

    evidence: Float[Array | np.ndarray, "starts moves"]
    found: Float[Array | np.ndarray, " starts"]
    false: Float[Array | np.ndarray, " starts"]


@eqx.filter_jit
def walked(key: Key, dim: int, arity: int, observations: int, moves: int) -> Walk:
    """Both chains of a function."""
    function_key, point_key, model_key, walk_key = jr.split(key, 4)
    function = draw(function_key, dim, arity)
    x = Cube(dim).sample(point_key, observations)
    structure = Sampled(arity=arity, count=1)
    model = Decomposed(
        structure, observations, form=SquaredExponential(LENGTH_SCALE), noise=NOISE, grid=2
    )
    shared = model.setup(model_key, dim)

    def observe(belief, item):
        return model.condition(shared, belief, *item), None

    y = jax.vmap(function.value)(x)
    belief = jax.lax.scan(observe, model.start(shared), (x, y))[0]
    evidence = model.evidence(shared, jax.tree.map(lambda leaf: leaf[0], belief.whole))
    truth = chain.shared(function.scopes, dim)

    def half(scopes: Scopes, logs: Logs | None, key: Key) -> chain.Chain:
        penalty = math.log(dim)
        return chain.sample(
            key, scopes, evidence, dim, fixed=dim, steps=moves // 2, penalty=penalty, logs=logs
        )

    def walk(scopes: Scopes, logs: Logs, key: Key) -> Walk:
        first_key, last_key = jr.split(key)
        first = half(scopes, logs, first_key)
        last = half(first.scopes, first.logs, last_key)
        assert first.evidence is not None
        assert last.evidence is not None
        assert last.pairs is not None
        right, total = jnp.sum(last.pairs * truth), jnp.sum(last.pairs)
        false = jnp.where(total > 0, 1 - right / jnp.where(total > 0, total, 1), 0)
        values = jnp.concatenate([first.evidence, last.evidence])
        constant = observations / 2 * math.log(2 * math.pi)
        return Walk(values - constant, right / jnp.sum(truth), false)

    empty = structure.start(key, dim)
    full = empty.at[dim : len(function.scopes)].set(function.scopes[dim:])
    logs = jnp.log(jnp.asarray([STARTS[EMPTY], STARTS[TRUTH]]))
    keys = jr.split(walk_key, 2)
    return jax.lax.map(lambda start: walk(*start), (jnp.stack([empty, full]), logs, keys))


def r_hat(evidence: Float[Array | np.ndarray, "starts moves"]) -> float:
    """R-hat of both last quarters of all chains."""
    quarter = evidence.shape[1] // 4
    some = np.asarray(evidence, np.float64)[:, -2 * quarter :].reshape(-1, quarter)
    within = some.var(axis=1, ddof=1).mean()
    return float(np.sqrt((quarter - 1) / quarter + some.mean(axis=1).var(ddof=1) / within))


def _run(options: Options) -> Result:
    runs = options.runs_or(RUNS, 2)
    problems = options.problems_or(PROBLEMS, quick=QUICK)
    sizes = {30: 1000} if options.quick else MOVES
    asked = [(problem, n) for problem in problems for n in sizes]
    keys = jr.split(jr.key(options.seed), runs)
    measures = {
        f"{problem}, {n}, {run}": functools.partial(
            walked, key, *(PROBLEMS | QUICK)[problem], n, sizes[n]
        )
        for problem, n in asked
        for run, key in enumerate(keys)
    }
    measured, folder = parts(options, "dec-chains", (sorted(sizes.items()),), measures)
    found = {
        _label(problem, n): [Walk(*measured[f"{problem}, {n}, {run}"]) for run in range(runs)]
        for problem, n in asked
    }
    hats = {name: np.array([r_hat(walk.evidence) for walk in some]) for name, some in found.items()}
    ends = {
        name: np.array(
            [walk.evidence[:, walk.evidence.shape[1] // 2 :].mean(axis=1) for walk in some]
        )
        for name, some in found.items()
    }

    def share(name: str, which: str) -> Float[np.ndarray, " starts"]:
        return np.mean([getattr(walk, which) for walk in found[name]], axis=0)

    shares = {which: {name: share(name, which) for name in found} for which in ("found", "false")}
    return Result(
        settings={
            "runs": runs,
            "moves": {str(n): moves for n, moves in sizes.items()},
            "length scale": LENGTH_SCALE,
            "R-hat": hats,
            "log evidence": {name: values.mean(axis=0) for name, values in ends.items()},
            **shares,
        },
        finals={f"{name}, R-hat": values for name, values in hats.items()},
        checks=checks(hats, ends),
        unit="R-hat of the log evidence",
        headers=(
            "function",
            "R-hat, s.e.",
            *(f"{start}: evidence, found, false" for start in STARTS),
        ),
        rows=[
            (
                name,
                " ".join(number(float(value)) for value in metrics.mean_and_error(hats[name])),
                *(
                    " ".join(
                        number(float(value))
                        for value in (
                            ends[name].mean(axis=0)[i],
                            *(s[name][i] for s in shares.values()),
                        )
                    )
                    for i in range(len(STARTS))
                ),
            )
            for name in found
        ],
        figure=_figure({name: some[0].evidence for name, some in found.items()}),
        scratch=folder,
    )


def _label(problem: str, observations: int) -> str:
    return f"{problem.replace('-triples', ', triples')}, {observations} points"


def checks(hats: dict[str, np.ndarray], ends: dict[str, np.ndarray]) -> dict[str, Check]:
    """The chains of both starts end alike."""
    claims: dict[str, Check] = {}
    for name, values in hats.items():
        claims[f"{name}: R-hat of the log evidence at most {MIXED:g}"] = on_average(
            values, most=MIXED
        )
        empty, truth = ends[name].T
        claims[f"{name}: log evidence {EMPTY} no more than {APART:g} below that {TRUTH}, nats"] = (
            difference(truth, empty, most=APART)
        )
    return claims


def _figure(walks: Mapping[str, Any]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(walks), 3.6), dpi=plotting.DPI, layout="constrained")
    for ax, (name, evidence) in zip(
        figure.subplots(1, len(walks), squeeze=False)[0], walks.items(), strict=True
    ):
        for start, values, color in zip(STARTS, evidence, plotting.PALETTE, strict=False):
            ax.plot(np.arange(1, len(values) + 1), values, color=color, lw=0.8, label=start)
        ax.set_title(name)
        ax.set_xlabel("moves")
        low = np.quantile(evidence[:, len(evidence[0]) // 10 :], 0.001)
        ax.set_ylim(bottom=min(low, np.median(evidence)) - 5)
        ax.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("log evidence, nats")
    figure.axes[0].legend(frameon=False)
    return figure


EXPERIMENT = Experiment(
    source="DEC-HBO, appendix B",
    about="chains over structures from two starts: R-hat of the evidence, and pairs found",
    time="15 min",
    run=_run,
    problems=tuple(PROBLEMS),
)
