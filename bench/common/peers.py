"""Methods of other libraries, with their defaults or what their documentation recommends.

    search(evaluate, initial, rounds, seed)    evaluates the initial points in order, then `rounds` more

`evaluate` takes a point of the unit cube and returns the value to maximize. A peer that is not installed
is left out; the extra `peers` brings all of them.
"""
# pyright: reportMissingImports=false

import importlib.util
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bench.common import botorch
from bench.common.search import traced
from bench.runner import progress
from jaxbo.algos.random_search import RandomSearch
from jaxbo.domains.base import Cube
from jaxbo.domains.parameters import Categorical, Integer, Real
from jaxbo.domains.space import Space
from jaxbo.objectives.families import Same
from jaxbo.objectives.functions import TestFunction

#: The deviation of CMA-ES's first generation, in edges of the cube.
SIGMA = 0.25

Evaluate = Callable[[np.ndarray], float]
Search = Callable[[Evaluate, np.ndarray, int, int], None]


class Peer(NamedTuple):
    """A method of others. `packages` must be installed; fewer runs of a slow peer will do."""

    search: Search
    packages: tuple[str, ...]
    settings: str
    slow: bool = False

    def missing(self) -> tuple[str, ...]:
        """The packages that are not installed."""
        return tuple(p for p in self.packages if importlib.util.find_spec(p) is None)


def at_random(evaluate: Evaluate, initial: np.ndarray, rounds: int, seed: int) -> None:
    """Uniform points."""
    rng = np.random.default_rng(seed)
    for x in (*initial, *rng.random((rounds, initial.shape[1]))):
        evaluate(x)


def tpe(evaluate: Evaluate, initial: np.ndarray, rounds: int, seed: int) -> None:
    """Tree-structured Parzen estimators of all coordinates together."""
    _optuna(tpe_sampler(len(initial), seed), evaluate, initial, rounds)


def tpe_sampler(initial: int, seed: int) -> Any:
    """Optuna's sampler of these estimators, after so many initial points."""
    import optuna

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(multivariate=True, n_startup_trials=initial, seed=seed)


def gp_sampler(evaluate: Evaluate, initial: np.ndarray, rounds: int, seed: int) -> None:
    """Optuna's Gaussian process with LogEI."""
    import optuna

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.GPSampler(n_startup_trials=len(initial), seed=seed)
    _optuna(sampler, evaluate, initial, rounds)


def _optuna(sampler: Any, evaluate: Evaluate, initial: np.ndarray, rounds: int) -> None:
    """A study of the unit cube."""
    import optuna

    names = [f"x{i}" for i in range(initial.shape[1])]
    cube = {name: optuna.distributions.FloatDistribution(0.0, 1.0) for name in names}

    def value(point: dict[str, Any]) -> float:
        return evaluate(np.array([point[name] for name in names]))

    study(
        sampler,
        cube,
        value,
        [dict(zip(names, map(float, x), strict=True)) for x in initial],
        rounds,
    )


def study(
    sampler: Any,
    distributions: dict[str, Any],
    evaluate: Callable[[dict[str, Any]], float],
    initial: Sequence[dict[str, Any]],
    rounds: int,
) -> None:
    """A study that is told the initial points."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    found = optuna.create_study(direction="maximize", sampler=sampler)
    for point in initial:
        value = evaluate(point)
        trial = optuna.trial.create_trial(params=point, distributions=distributions, value=value)
        found.add_trial(trial)
    for _ in range(rounds):
        trial = found.ask(distributions)
        found.tell(trial, evaluate(trial.params))


def distributions(space: Space) -> dict[str, Any]:
    """The parameters of a space in Optuna's words."""
    import optuna

    found: dict[str, Any] = {}
    for name, one in space.parameters:
        if isinstance(one, Real):
            found[name] = optuna.distributions.FloatDistribution(one.lower, one.upper, log=one.log)
        elif isinstance(one, Integer):
            found[name] = optuna.distributions.IntDistribution(one.lower, one.upper, log=one.log)
        else:
            assert isinstance(one, Categorical)
            found[name] = optuna.distributions.CategoricalDistribution(one.choices)
    return found


def cma_es(evaluate: Evaluate, initial: np.ndarray, rounds: int, seed: int) -> None:
    """CMA-ES with bounds. It begins at the best initial point, and at random after it has converged."""
    import cma

    values, rng = [evaluate(x) for x in initial], np.random.default_rng(seed)
    mean, left = initial[int(np.argmax(values))], rounds
    while left > 0:
        options = {"bounds": [0, 1], "seed": int(rng.integers(1, 2**31)), "verbose": -9}
        strategy = cma.CMAEvolutionStrategy(mean, SIGMA, options)
        while left > 0 and not strategy.stop():
            points = strategy.ask()
            told = [-evaluate(x) for x in points[:left]]
            left -= len(told)
            if len(told) == len(points):
                strategy.tell(points, told)
        mean = rng.random(initial.shape[1])


def log_ei(evaluate: Evaluate, initial: np.ndarray, rounds: int, seed: int) -> None:
    """BoTorch's default model, fitted every time, and LogEI."""
    botorch.log_ei(evaluate, initial, rounds, seed)


def smac(evaluate: Evaluate, initial: np.ndarray, rounds: int, seed: int) -> None:
    """SMAC3's facade for black boxes, which is told the initial points."""
    import tempfile

    from ConfigSpace import Configuration, ConfigurationSpace
    from smac import BlackBoxFacade, Scenario
    from smac.runhistory import TrialInfo, TrialValue

    names = [f"x{i}" for i in range(initial.shape[1])]
    space = ConfigurationSpace(dict.fromkeys(names, (0.0, 1.0)), seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        scenario = Scenario(
            space,
            deterministic=True,
            n_trials=len(initial) + rounds,
            seed=seed,
            output_directory=folder,
        )
        facade = BlackBoxFacade(
            scenario,
            lambda config, seed: 0.0,  # never called: it is asked and told
            initial_design=BlackBoxFacade.get_initial_design(scenario, n_configs=0),
            logging_level=False,
            overwrite=True,
        )
        for x in initial:
            point = Configuration(space, values=dict(zip(names, map(float, x), strict=True)))
            facade.tell(TrialInfo(point, seed=seed), TrialValue(cost=-evaluate(x)))
        for _ in range(rounds):
            info = facade.ask()
            x = np.array([info.config[name] for name in names])
            facade.tell(info, TrialValue(cost=-evaluate(x)))


RANDOM, TPE, GP, CMA, LOG_EI, SMAC = "random", "TPE", "GPSampler", "CMA-ES", "BoTorch", "SMAC3"
PEERS = {
    RANDOM: Peer(at_random, (), "uniform points"),
    CMA: Peer(cma_es, ("cma",), f"cma, sigma {SIGMA} of the cube, from the best initial point"),
    TPE: Peer(tpe, ("optuna",), "Optuna, multivariate"),
    GP: Peer(gp_sampler, ("optuna", "torch", "scipy"), "Optuna, defaults", slow=True),
    LOG_EI: Peer(log_ei, ("botorch",), "SingleTaskGP, LogEI, fitted every time", slow=True),
    SMAC: Peer(smac, ("smac",), "BlackBoxFacade, defaults", slow=True),
}


# ---------------------------------------------------------------- their runs


def regret(
    search: Search, function: TestFunction, keys: Array, rounds: int
) -> Float[np.ndarray, "runs rounds"]:
    """As `search.regret` has it, from the same initial points. The seed of a run is its number."""
    objective, algorithm = Same(function=function), RandomSearch(Cube(function.dim), 1)
    value = eqx.filter_jit(function)
    found = []
    for seed, key in enumerate(progress(keys, f"a peer, {function.dim}-D")):
        initial = np.asarray(traced(algorithm, objective, 0, key)[0], float)
        x: list[np.ndarray] = []
        values: list[float] = []

        def evaluate(point: np.ndarray, x: Any = x, values: Any = values) -> float:
            x.append(np.array(point, float))
            values.append(float(value(jnp.asarray(point, float))))
            return values[-1]

        search(evaluate, initial, rounds, seed)
        check(np.stack(x), initial, rounds)
        best = np.maximum.accumulate(values)[len(initial) :]
        found.append(float(function.maximum) - best)
    return np.stack(found)


def check(told: np.ndarray, initial: np.ndarray, rounds: int) -> None:
    """`RuntimeError` if a run has another number of evaluations, or another beginning."""
    total = len(initial) + rounds
    if len(told) != total or not np.array_equal(told[: len(initial)], initial):
        raise RuntimeError(
            f"a peer evaluated {len(told)} points of {total}, or began elsewhere than all do."
        )
