"""An ensemble of eleven kernels: an iteration, its update and a refit of all, beside other libraries.

Two dimensions, 100 features (D = 50), 1000 candidates, refined; 30 observations. Independent
optimizations are mapped over. BoTorch maximizes LogEI of its default model, which has a single kernel,
and fits it; the time of a fit is taken once for each of our kernels. scikit-learn, which the paper
used, draws a kernel's process at 1000 points, without refinement, and fits each kernel from four
starts. The eleven keep their length scales, in scikit-learn too. The four of `Ensemble.warped` are
fitted whole, as BoTorch's: length scales (a common one or one for each coordinate), variance, noise,
and the warping.
"""
# pyright: reportMissingImports=false

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from bench.common.timing import Figure, compiled, race
from jaxbo.algos.base.one_model import State
from jaxbo.algos.egp import EGP
from jaxbo.domains.base import Cube
from jaxbo.kernels.models.ensemble import Ensemble
from jaxbo.kernels.models.fitted import Fitted
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.objectives.functions import branin_rescaled
from jaxbo.types import Key

BOTORCH = "BoTorch"
SCALES = tuple(10.0**c for c in range(-4, 7))
DIM, FEATURES, OBSERVATIONS, NOISE = 2, 100, 30, 1e-2
#: Independent optimizations at the same time; many are computed so many at once.
NUMBERS, BATCH = (1, 100, 10_000), 200
#: How much cheaper than BoTorch's an iteration is to be, and a refit.
GOAL, REFIT_GOAL = 1000.0, 50.0


def figures(key: Key, repeats: int, numbers: tuple[int, ...] = NUMBERS) -> list[Figure]:
    """The figures of every number of optimizations; a rival runs a single optimization."""
    algorithm = method()
    X, y = data(key)
    theirs = {
        library: {name: float(np.min(race({name: call}, 3)[name])) for name, call in calls.items()}
        for library, calls in _rivals(X, y).items()
    }
    found = []
    for number in numbers:
        states = _states(algorithm, jr.split(key, number), X, y)
        keys = jr.split(jr.fold_in(key, 1), number)
        parts: dict[str, Callable[..., Any]] = {
            "an iteration": lambda k, s: _iteration(algorithm, k, s),
            "one observation and the weights": lambda k, s: _observed(algorithm, k, s),
            "a refit of all": lambda k, s: _refit(algorithm, s),
        }
        for name, part in parts.items():
            if name == "a refit of all" and number > BATCH:
                continue  # its time grows with their number alone
            program, seconds = compiled(lambda k, s, part=part: _all(part, k, s), keys, states)
            each = race({name: lambda p=program: p(keys, states)}, repeats)[name] / number  # noqa: B023
            label = f"{len(SCALES)} kernels, {number} optimizations: {name}"
            found.extend(_figures(label, name, each, theirs))
            found.append(Figure(f"{label}: compilation", seconds, "s"))
        if number <= BATCH:
            found += _whole(keys, X, y, repeats, theirs)
    return found


def _whole(
    keys: Array, X: Array, y: Array, repeats: int, theirs: dict[str, dict[str, float]]
) -> list[Figure]:
    """A refit of kernels whose length scales are fitted too."""
    model = Ensemble.warped(DIM, 2 * OBSERVATIONS, refit_every=None)
    algorithm, name = EGP(Cube(DIM), model), "a refit of all"
    states = _states(algorithm, keys, X, y)
    program, _ = compiled(lambda k, s: _all(lambda _, s: _refit(algorithm, s), k, s), keys, states)
    each = race({name: lambda: program(keys, states)}, repeats)[name] / len(keys)
    share = len(model.kernels) / len(SCALES)
    fits = {BOTORCH: {name: share * theirs[BOTORCH][name]}} if BOTORCH in theirs else {}
    return _figures(f"Ensemble.warped, {len(keys)} optimizations: {name}", name, each, fits)


def _figures(
    label: str, name: str, each: np.ndarray, theirs: dict[str, dict[str, float]]
) -> list[Figure]:
    """A figure beside every library that does the same, or a figure alone."""
    best, values = float(np.min(each)), tuple(1e6 * each)
    beside = {library: calls[name] for library, calls in theirs.items() if name in calls}
    found = []
    for library, seconds in beside.items():
        least = GOAL if name == "an iteration" else REFIT_GOAL
        goal = f">= {least:g}x" if library == BOTORCH else ""
        found.append(Figure(label, 1e6 * best, "us", library, seconds / best, goal, values))
    return found or [Figure(label, 1e6 * best, "us", values=values)]


def method() -> EGP:
    """What is measured."""
    kernels = [SquaredExponential(scale) for scale in SCALES]
    expert = Fitted(
        2 * OBSERVATIONS, size=FEATURES, noise=NOISE, refit_every=None, keep_length_scale=True
    )
    return EGP(Cube(DIM), Ensemble(kernels=kernels, expert=expert))


def data(key: Key) -> tuple[Array, Array]:
    """Observations of a test function."""
    X = jr.uniform(key, (OBSERVATIONS, DIM))
    return X, jax.vmap(branin_rescaled())(X)


def _states(algorithm: EGP, keys: Array, X: Array, y: Array) -> State:
    def one(key: Key) -> State:
        return algorithm.warm_start(algorithm.init(key), X[:, None], y[:, None])

    return jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=BATCH))(keys)


def _all(part: Callable[..., Any], keys: Array, states: State) -> Any:
    return jax.lax.map(lambda item: part(*item), (keys, states), batch_size=BATCH)


def _iteration(algorithm: EGP, key: Key, state: State) -> Any:
    """Ask, evaluate, tell; the input of the next step is returned, so that nothing is left out."""
    queries, _ = algorithm.ask(key, state)
    state = algorithm.tell(state, queries, jax.vmap(branin_rescaled())(queries))
    return queries, _weights(algorithm, state)


def _observed(algorithm: EGP, key: Key, state: State) -> Any:
    """Every expert told of a value, and the weights by Bayes' rule."""
    state = algorithm.tell_one(state, jr.uniform(key, (DIM,)), jnp.zeros(()))
    return state.belief, _weights(algorithm, state)


def _weights(algorithm: EGP, state: State) -> Array:
    surrogate = algorithm.surrogate
    assert isinstance(surrogate, Ensemble)
    return surrogate.log_weights(state.shared, state.belief)


def _refit(algorithm: EGP, state: State) -> Any:
    return algorithm.surrogate.refit(state.shared, state.belief).noise


def _rivals(X: Array, y: Array) -> dict[str, dict[str, Callable[[], Any]]]:
    """An iteration and a refit of all in the libraries that are installed."""
    points, values = np.asarray(X, float), np.asarray(y, float)
    standard = (values - values.mean()) / values.std()
    found = {}
    for library, calls in ((BOTORCH, _botorch), ("scikit-learn", _sklearn)):
        try:
            found[library] = calls(points, standard)
        except ImportError:
            continue
    return found


def _sklearn(X: np.ndarray, y: np.ndarray) -> dict[str, Callable[[], Any]]:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    def fitted(scale: float) -> Any:
        kernel = ConstantKernel() * RBF(scale, length_scale_bounds="fixed") + WhiteKernel(NOISE)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return GaussianProcessRegressor(kernel, n_restarts_optimizer=3).fit(X, y)

    known, rng = fitted(0.1), np.random.default_rng(0)

    def iteration() -> Any:
        candidates = rng.random((1000, X.shape[1]))
        return candidates[np.argmax(known.sample_y(candidates, random_state=0))]

    return {"an iteration": iteration, "a refit of all": lambda: [fitted(s).alpha for s in SCALES]}


def _botorch(X: np.ndarray, y: np.ndarray) -> dict[str, Callable[[], Any]]:
    import torch
    from botorch.acquisition import LogExpectedImprovement
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.optim import optimize_acqf
    from gpytorch.mlls import ExactMarginalLogLikelihood

    warnings.filterwarnings("ignore", module="botorch|gpytorch|linear_operator")
    points = torch.tensor(X, dtype=torch.double)
    values = torch.tensor(y, dtype=torch.double)[:, None]
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double).repeat(1, X.shape[1])

    def fitted() -> Any:
        model = SingleTaskGP(points, values)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        return model

    known = fitted()

    def iteration() -> Any:
        improvement = LogExpectedImprovement(known, values.max())
        found = optimize_acqf(improvement, bounds, q=1, num_restarts=4, raw_samples=1000)
        return found[0].detach().numpy()

    def refits() -> list[int]:
        return [fitted().num_outputs for _ in SCALES]

    return {"an iteration": iteration, "a refit of all": refits}
