"""The rivals of CEPE beside dense algebra in float64."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats

from bench.cepe.collaborative import IGPUCB, Collaborative, Improvement, Probability
from jaxbo.domains.base import Finite
from jaxbo.kernels.processes.covariance import SquaredExponential, stack
from jaxbo.objectives.families import OnGrid
from jaxbo.runs.compiled import run
from tests.algos.pasts import fine

AGENTS, ROUNDS, NOISE = 3, 25, 1e-2
POINTS = Finite(np.random.default_rng(3).random((120, 2)))
ALPHA = np.array([0.0, 0.4, 1.0])
WEIGHTS = np.array([0.5, 0.3, 0.2])


def dense(trace, t, present, joint):
    """Mean and deviation of every f_i at all points before round t, and the best means."""
    points = np.asarray(POINTS.points, float)
    squares = ((points[:, None] - points[None]) ** 2).sum(-1)
    K = np.exp(-squares / 2 / 0.2**2)
    means, variances, seen = [], [], []
    for j in range(AGENTS):
        x = np.asarray(trace.queries[:t, j], float)
        y = np.asarray(trace.values[:t, j], float)
        fine = np.isfinite(y)
        at = ((x[fine][:, None] - points[None]) ** 2).sum(-1).argmin(1)
        A = K[np.ix_(at, at)] + NOISE * np.eye(len(at))
        means.append(K[:, at] @ np.linalg.solve(A, y[fine]))
        variances.append(1 - np.einsum("pn,np->p", K[:, at], np.linalg.solve(A, K[at])))
        seen.append(at)
    found = []
    for i in range(AGENTS):
        c = (1 - ALPHA[i]) * WEIGHTS * (present | (np.arange(AGENTS) == i))
        c[i] += ALPHA[i]
        mean, std = c @ np.array(means), np.sqrt(c**2 @ np.array(variances))
        std = std if joint else c @ np.sqrt(np.array(variances))
        found.append((mean, std, mean[seen[i]].max() if len(seen[i]) else 0.0))
    return found


def improvement(t, mean, std, best):
    z = (mean - best - 0.01) / std
    with np.errstate(divide="ignore"):  # far from the best
        return np.log(std * (z * stats.norm.cdf(z) + stats.norm.pdf(z)))


def probability(t, mean, std, best):
    return stats.norm.logcdf((mean - best - 0.01) / std)


def ucb(t, mean, std, best):
    gain = np.log(max(t - 1, 1))
    return mean + (2 + 0.1 * np.sqrt(2 * (gain + 1 + np.log(10)))) * std


@pytest.mark.full
@pytest.mark.parametrize(
    ("index", "reference", "joint"),
    [
        (IGPUCB(2.0, 0.1, 0.1), ucb, True),
        pytest.param(IGPUCB(2.0, 0.1, 0.1), ucb, False, marks=pytest.mark.full),
        (Improvement(), improvement, True),
        (Probability(), probability, True),
    ],
)
def test_every_query_maximizes_the_index_of_what_the_agent_wants(index, reference, joint):
    values = jr.normal(jr.key(0), (AGENTS, 120))
    values = values.at[1, :40].set(0.0)
    options = {"alpha": ALPHA, "weights": WEIGHTS, "joint": joint, "size": 100}
    method = Collaborative(POINTS, AGENTS, index, **options)
    present = np.asarray(jr.uniform(jr.key(7), (ROUNDS, AGENTS)) < 0.7)
    grid = OnGrid(values, POINTS.points, 0.1)

    def objective(key, agent, x):
        value = grid(key, agent, x)
        return jnp.where(jr.uniform(jr.fold_in(key, 1)) < 0.2, jnp.nan, value)

    _, trace = run(method, objective, ROUNDS, jr.key(1), present=jnp.asarray(present))
    assert np.isnan(trace.values).any()
    points = np.asarray(POINTS.points, float)
    allowed = np.asarray(fine(trace.queries, trace.values, POINTS.points))
    assert not allowed.all()
    for t in range(ROUNDS):
        for i, (mean, std, best) in enumerate(dense(trace, t, present[t], joint)):
            scores = np.where(allowed[i, t], reference(t + 1, mean, std, best), -np.inf)
            at = ((np.asarray(trace.queries[t, i], float) - points) ** 2).sum(-1).argmin()
            assert scores[at] > scores.max() - 5e-3 * max(1, abs(scores.max()))
    succeeded = np.isfinite(np.asarray(trace.values))
    np.testing.assert_array_equal(trace.info.scalars[1:], 3 * succeeded[:-1])
    assert len(np.unique(np.asarray(trace.queries[0]), axis=0)) > 1  # nobody knows anything


@pytest.mark.full
def test_all_that_was_observed_before_the_start_is_sent_with_the_first_query():
    method = Collaborative(POINTS, AGENTS, Improvement(), size=40)
    grid = OnGrid(jr.normal(jr.key(0), (AGENTS, 120)), POINTS.points)
    _, trace = run(method, grid, 2, jr.key(1), initial=5)
    np.testing.assert_array_equal(trace.info.scalars, 3 * np.array([[5], [1]]) * np.ones(3, int))


@pytest.mark.full
def test_a_long_run_stays_exact():
    # Thousands of updates of one root; the domain is seen many times over.
    method = Collaborative(POINTS, 1, IGPUCB(2.0, 0.1, 0.1), alpha=1.0, size=100)
    grid = OnGrid(jr.normal(jr.key(0), (1, 120)), POINTS.points, 0.1)
    state, trace = run(method, grid, 1500, jr.key(1))
    points = np.asarray(POINTS.points, float)
    K = np.exp(-((points[:, None] - points[None]) ** 2).sum(-1) / 2 / 0.2**2)
    at = ((np.asarray(trace.queries[:, 0], float)[:, None] - points) ** 2).sum(-1).argmin(1)
    counts = np.bincount(at, minlength=120)
    sums = np.bincount(at, np.asarray(trace.values[:, 0], float), minlength=120)
    known = counts > 0
    A = K[np.ix_(known, known)] + NOISE * np.diag(1 / counts[known])
    mean = K[:, known] @ np.linalg.solve(A, sums[known] / counts[known])
    variance = 1 - np.einsum("pn,np->p", K[:, known], np.linalg.solve(A, K[known]))
    belief = jax.tree.map(lambda leaf: np.asarray(leaf[0]), state.clients.belief)
    np.testing.assert_allclose(belief.mean, mean, atol=2e-2)
    np.testing.assert_allclose(belief.variance, variance, rtol=5e-2, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 2.0}, "alpha"),
        ({"weights": np.array([1.0, -1.0, 0.0])}, "weights"),
        ({"noise": 0.0}, "noise"),
        ({"size": 0}, "size"),
        ({"kernel": stack([SquaredExponential(0.2)] * 3, 2)}, "one kernel"),
    ],
)
def test_bad_input_is_one_clear_error(options, message):
    with pytest.raises(ValueError, match=message):
        Collaborative(POINTS, AGENTS, Improvement(), **options)


@pytest.mark.parametrize("options", [{"bound": -1.0}, {"noise": -1.0}, {"delta": 1.0}])
def test_constants_of_the_bound_are_checked(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        IGPUCB(**options)
