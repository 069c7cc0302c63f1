"""FTS and its rivals on compiled objectives: who has whose objective, what is shared, the claims."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from bench.fts import activity, agents, growing, lengths, pooled, rivals
from bench.fts.rivals import (
    ALONE,
    GROWING,
    INITIAL,
    LONGER,
    RANKED,
    SHOWN,
    TARGETS,
    FederatedProblem,
)
from jaxbo.domains.base import Cube, Finite
from jaxbo.kernels.choosing.ranking import Ranked

PROBLEM = FederatedProblem(owners=7, dim=2)


@pytest.fixture
def light(monkeypatch):
    """Nothing to search through and nothing to fit: compiled in a fraction of the time."""
    points = Cube(PROBLEM.dim).sample(jr.key(0), 50)
    monkeypatch.setattr(rivals, "Cube", lambda dim: Finite(points))
    monkeypatch.setattr(rivals, "REFIT", None)


def peak_of(key, agent, x):
    """No noise: the same point has the same value, and every person another."""
    del key
    return -jnp.sum((x - agent / 10) ** 2)


def test_a_target_has_the_objective_of_its_person(key):
    x, owned = jnp.array([0.3, 0.4]), activity.Owned(peak_of)
    found = [owned(key, jnp.asarray(agent), x) for agent in range(TARGETS + 7)]
    people = [*range(TARGETS), *range(7)]
    np.testing.assert_array_equal(found, [peak_of(key, person, x) for person in people])


@pytest.mark.full
@pytest.mark.parametrize("kind", ["FTS", pytest.param(GROWING, marks=pytest.mark.full)])
def test_targets_start_where_they_start_alone(kind, key, light):
    keys = jr.split(key, 2)
    past = activity.past_of(PROBLEM, peak_of, 2, keys)
    found = activity.values_of(PROBLEM, peak_of, (kind, 20), 2, keys, past)
    assert found.shape == (2, INITIAL + 2, TARGETS)
    np.testing.assert_allclose(found[:, :INITIAL], past[1][:, :INITIAL, :TARGETS], rtol=1e-5)
    assert np.isfinite(found).all()


def test_peers_go_on_alone_and_nobody_hears_its_own_past():
    federated = rivals.federated(PROBLEM, GROWING, 20, rounds=5)
    assert federated.targets == federated.agents == TARGETS + 7
    weights = np.asarray(federated.peers)
    assert (weights[TARGETS:] == 0).all()
    np.testing.assert_array_equal(weights[:TARGETS], rivals.others(PROBLEM))
    assert not federated.once
    ranked = rivals.federated(PROBLEM, RANKED, 20, rounds=5)
    assert isinstance(ranked.peers, Ranked)
    np.testing.assert_array_equal(ranked.peers.start, rivals.others(PROBLEM))


@pytest.mark.full
def test_peers_that_go_on_begin_with_what_others_send_and_targets_with_their_initial_points(key):
    X, y = jr.uniform(key, (53, 7, 2)), jr.normal(key, (53, 7))
    algorithm = rivals.federated(PROBLEM, GROWING, 20, rounds=5)
    beliefs = eqx.filter_jit(rivals.informed)(algorithm, key, X, y).clients.beliefs
    counts, own = np.asarray(beliefs.message.moments.count), beliefs.own
    np.testing.assert_array_equal(counts, [INITIAL] * TARGETS + [50] * 7)
    np.testing.assert_array_equal(own.y[:TARGETS, :INITIAL], y[:INITIAL, :TARGETS].T)
    np.testing.assert_array_equal(own.y[TARGETS:, :50], y[:50].T)
    assert len(np.unique(np.asarray(own.noise))) > TARGETS  # each fitted to what it knows


def test_the_error_is_the_least_so_far_without_what_failed():
    values = np.full((1, INITIAL + 3, 2), 0.5)
    values[0, 1, 0], values[0, INITIAL + 1, 0], values[0, INITIAL + 2, 1] = 0.75, np.nan, 0.875
    found = activity.errors_of(values)
    np.testing.assert_array_equal(found, [[[0.25, 0.25, 0.25], [0.5, 0.5, 0.125]]])


def made_up(levels):
    noise = 0.002 * np.random.default_rng(0).standard_normal((len(levels), 5, 6, 10))
    return {key: level + e for (key, level), e in zip(levels.items(), noise, strict=True)}


def test_claims_are_about_what_ended_below():
    levels = {(ALONE, 0): 0.1, ("FTS", SHOWN): 0.08, ("RGPE", SHOWN): 0.09, ("TAF", SHOWN): 0.07}
    levels[RANKED, SHOWN] = 0.2
    checks = activity.checks(made_up(levels))
    # Not above TS, below RGPE and not TAF; the ranked one above both.
    outcomes = [str(check.outcome) for check in checks.values()]
    assert outcomes == ["holds", "holds", "refuted", "refuted", "refuted"]
    assert {check.runs for check in checks.values()} == {5}  # not runs and targets


def test_growing_is_compared_to_one_message_and_to_none():
    errors = made_up(
        {
            growing.label("har", kind): level
            for kind, level in zip(growing.KINDS, (0.1, 0.08, 0.11), strict=True)
        }
    )
    assert [check.holds for check in growing.checks(errors).values()] == [True, False, False]


def test_fts_that_grows_with_its_peers_is_told():
    flat, rising = np.array([[1.0, 1.5], [1.2, 1.4]]), np.array([[1.0, 9.0], [1.0, 8.0]])
    found = agents.checks({"FTS": flat, "RGPE": rising, "TAF": flat}, (10, 100))
    assert [check.holds for check in found.values()] == [True, True, False]
    assert found["RGPE: a query at N = 100 grows more than that of FTS"].figure == 8.0
    assert not next(iter(agents.checks({"FTS": rising}, (10, 100)).values())).holds


@pytest.mark.full
def test_a_query_is_timed_for_each_method(light):
    seconds = agents.seconds_of(3, repeats=2, seed=0)
    assert list(seconds) == ["FTS", "RGPE", "TAF"]
    assert all(times.shape == (2,) and (times > 0).all() for times in seconds.values())


def test_pooled_is_compared_to_a_fit_of_ones_own_and_to_knowing():
    levels = {"known": 0.1, "its own": 0.2, "pooled": 0.15}
    levels = {pooled.name(kind): level for kind, level in levels.items()}
    curves = made_up(levels | {pooled.ALONE_KNOWN: 0.3, pooled.ALONE_OWN: 0.12})
    curves = {name: activity.flat(errors) for name, errors in curves.items()}
    assert [c.holds for c in pooled.checks(curves).values()] == [True, True, False, False]
    rows = {name: pooled._row(name, curve) for name, curve in curves.items()}
    assert rows["FTS, pooled"][-1] == "228"
    assert rows["FTS, known"][-1] == "100"
    assert rows["TS, known"][-1] == "0"


@pytest.mark.full
def test_a_message_of_the_longer_scale_says_where_a_similar_objective_is_high(key, light):
    points_key, run_key = jr.split(key)
    queries = jr.uniform(points_key, (1, 20, 7, 2))
    values = -jnp.sum((queries - jnp.arange(7)[None, None, :, None] / 10) ** 2, axis=-1)
    given = PROBLEM, peak_of, (LONGER, 40), 5, jr.split(run_key, 1), (queries, values)
    peak, random = (float(one[0]) for one in lengths.at_peaks(*given))
    # The owners' own maxima are 0.3 apart on average, and random points are further.
    assert random < peak - 0.1
    assert peak < 0


def test_lengths_are_compared_early_and_at_the_end():
    levels = {lengths.ALONE: 0.1, lengths.SHORT: 0.12, lengths.LONG: 0.08}
    errors = made_up({f"har: {label}": level for label, level in levels.items()})
    random = 0.5 + 0.001 * np.arange(5.0)
    values = {
        f"har: {lengths.SHORT}, {lengths.PEAK}": (random - 0.1, random),
        f"har: {lengths.LONG}, {lengths.PEAK}": (random + 0.1, random),
    }
    outcomes = [str(check.outcome) for check in lengths.checks(errors, values).values()]
    assert outcomes == ["refuted"] * 3 + ["holds"] * 4
