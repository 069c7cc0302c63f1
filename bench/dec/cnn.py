"""DEC-HBO, Table 2 and Fig. 2a: six hyperparameters of a convolutional network for CIFAR-10.

    learning rate, three dropout rates, batch size, epochs     (tasks/cifar.py says what is smaller here)

The method sees the share of wrong validation images. The figure shows the share of wrong test images at
the best point on the validation images so far. Every evaluation trains a network, inside of the
compiled program. Every run has 10 random points of its own, the same for all methods. Factors are all
pairs, or all triples, of the six. Neither random search is in the paper nor the plain process with a
length scale for each coordinate and the prior of `Priors.scaled`.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.random as jr
import numpy as np
from jaxtyping import Float

from bench.claims import BY, Check, within
from bench.common.search import INITIAL, incumbents, traced
from bench.common.text import number
from bench.dec.methods import GRIDS, PLAIN, REFIT, decomposed, scaled
from bench.runner import Experiment, Options, Result, parts
from bench.tasks import cifar
from bench.tasks.cifar import SPACE, Cifar
from jaxbo import metrics, plotting
from jaxbo.algos.base.algorithm import AbstractAlgorithm
from jaxbo.algos.dec_hbo import DECHBO
from jaxbo.algos.random_search import RandomSearch
from jaxbo.kernels.additive.policy import AbstractFactorPolicy, UpperBound
from jaxbo.types import Key, Point, Scalar

#: Of validation shares, which differ from training to training by a hundredth or two.
NOISE = 1e-2
#: The errors of Table 2, on the whole set.
PAPER = {"ADD-GP-UCB": 0.1068, "DEC-HBO, pairs": 0.0950, "DEC-HBO, triples": 0.1107}


def _factors(
    size: int, policy: AbstractFactorPolicy = UpperBound()
) -> Callable[[int], AbstractAlgorithm]:
    def method(evaluations: int) -> DECHBO:
        scopes = list(itertools.combinations(range(SPACE.dim), size))
        model = decomposed(scopes, evaluations, GRIDS[size], noise=NOISE)
        return DECHBO(SPACE, model, policy)

    return method


METHODS: dict[str, Callable[[int], AbstractAlgorithm]] = {
    "ADD-GP-UCB": _factors(1, UpperBound(joint=False)),
    "DEC-HBO, pairs": _factors(2),
    "DEC-HBO, triples": _factors(3),
    PLAIN: lambda evaluations: scaled(SPACE, evaluations, NOISE),
    "random search": lambda evaluations: RandomSearch(SPACE, 1),
}
QUICK = ("DEC-HBO, pairs",)
OURS = ("DEC-HBO, pairs", "DEC-HBO, triples")


def _run(options: Options) -> Result:
    runs, rounds = options.runs_or(3, 2), options.rounds_or(50, 2)
    methods = QUICK if options.quick else tuple(METHODS)
    objective = cifar.cifar(100) if options.quick else cifar.cifar()
    images = len(objective.train.y)
    keys = jr.split(jr.key(options.seed), runs)
    measures = {
        f"{method}, {run}": functools.partial(errors, method, objective, rounds, key)
        for run, key in enumerate(keys)
        for method in methods
    }
    found, folder = parts(options, "dec-cnn", (rounds, images), measures)
    validation, curves = (
        {m: np.stack([found[f"{m}, {run}"][part] for run in range(runs)]) for m in methods}
        for part in (0, 1)
    )
    return Result(
        settings={
            "runs": runs,
            "evaluations": rounds,
            "initial points": INITIAL,
            "evaluations between fits": REFIT,
            "images": images,
            "validation errors": {m: some[:, -1].mean() for m, some in validation.items()},
        },
        curves=curves,
        checks=checks(curves),
        unit="test error",
        headers=("method", "test error", "s.e.", "validation error", "s.e.", "paper, whole set"),
        rows=[
            _row(method, curves[method], validation[method], PAPER.get(method))
            for method in methods
        ],
        figure=_figure(curves),
        scratch=folder,
    )


def errors(
    method: str, objective: Cifar, rounds: int, key: Key
) -> tuple[Float[np.ndarray, " rounds"], Float[np.ndarray, " rounds"]]:
    """Validation error of the best so far, and the test error of a network trained like it."""
    run_key, test_key = jr.split(key)
    queries, values = traced(METHODS[method](rounds), objective, rounds, run_key)
    best = incumbents(values)
    # Trained anew, with the same draws for all: not with those that made it the best.
    tested = {
        i: float(_tested(objective, test_key, queries[i])) for i in sorted(set(best.tolist()))
    }
    shown = best[INITIAL:]
    return np.asarray(1 - values[shown], float), np.array([1 - tested[i] for i in shown.tolist()])


@eqx.filter_jit
def _tested(objective: Cifar, key: Key, x: Point) -> Scalar:
    return objective.shares(key, x)[1]


def checks(curves: dict[str, np.ndarray]) -> dict[str, Check]:
    """The claim of Table 2: factor graphs at or below ADD-GP-UCB."""
    ends = {method: curve[:, -1] for method, curve in curves.items()}
    found: dict[str, Check] = {}
    for method, rival in itertools.product(OURS, ("ADD-GP-UCB", PLAIN, "random search")):
        if method in ends and rival in ends:
            found[f"{method} no worse than {rival} {BY}, ratio"] = within(ends[method], ends[rival])
    return found


def _row(
    method: str, curve: np.ndarray, validation: np.ndarray, paper: float | None
) -> tuple[str, ...]:
    ends = [metrics.mean_and_error(some[:, -1]) for some in (curve, validation)]
    return (method, *(number(float(cell)) for end in ends for cell in end), number(paper))


def _figure(curves: dict[str, np.ndarray]) -> Any:
    axes: Any = plotting.regret(curves, ylabel="test error", band="error")
    return axes.figure


EXPERIMENT = Experiment(
    source="DEC-HBO, Table 2, Fig. 2a",
    about="six hyperparameters of a smaller network on fewer images: factors of 1, 2 and 3",
    time="1 h",
    run=_run,
)
