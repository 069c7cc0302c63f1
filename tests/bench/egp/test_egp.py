"""The methods of EGP-TS's experiments: each builds, and its regret is as defined."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench import runner
from bench.common import peers, search
from bench.common.botorch import BOTORCH
from bench.egp import evidence, network, parallel, robot, synthetic
from bench.egp.methods import EXACT, FIRST, METHODS, MIXTURE
from bench.tasks.network import SPACE
from jaxbo.algos.egp import EGP
from jaxbo.domains.base import Cube, Finite
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.objectives.families import Same
from jaxbo.objectives.functions import dropwave


class Quadratic(eqx.Module):
    """Stands for a network: as many integers and logarithms, and no training."""

    def __call__(self, key, agent, x):
        chosen = SPACE.unpack(x)
        return 1 - (chosen["first"].astype(x.dtype) / 200) ** 2


def light(dim, evaluations):
    """Compiles in a fraction of the time of the experiments' methods."""
    return EGP(Cube(dim), Fixed(size=10), candidates=10)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dim", [pytest.param(2, marks=pytest.mark.full), 5])
def test_every_method_has_room_for_its_evaluations(name, dim):
    algorithm = METHODS[name](dim, 100)
    assert algorithm.domain.dim == dim
    assert algorithm.capacity == 110


@pytest.mark.full
@pytest.mark.parametrize(
    "method", [light, pytest.param(METHODS["GP-TS, SE"], marks=pytest.mark.full)]
)
def test_regret_is_against_the_optimum_and_never_grows(method):
    keys = jax.random.split(jax.random.key(0), 2)
    regret = np.asarray(search.regret(method, dropwave(), keys, 3))
    assert regret.shape == (2, 3)
    assert (np.diff(regret, axis=1) <= 0).all()
    assert ((regret >= 0) & (regret <= 1)).all()


def test_claims_compare_the_ends_of_runs():
    names = [f"{f}, {m}" for f in synthetic.FUNCTIONS for m in METHODS]
    good, bad = np.full((4, 3), 0.001), np.full((4, 3), 1e3) + np.arange(4)[:, None]
    alike = synthetic.checks(dict.fromkeys(names, good))
    assert alike
    assert all(check.holds for check in alike.values())
    worse = {name: bad if "EGP" in name or "mixture" in name else good for name in names}
    claims = synthetic.checks(worse)
    # That features and the exact process are no worse than each other is true all the same.
    equal = f"no worse than {EXACT}", f"{EXACT} no worse"
    holding = [claim for claim, check in claims.items() if check.holds]
    assert len(holding) == 4 * 2
    assert all(any(text in claim for text in equal) for claim in holding)
    assert len(claims) == len(alike) == 4 * 11  # without BoTorch's


def test_with_botorch_there_are_claims_about_it():
    names = [f"drop-wave, {m}" for m in (*METHODS, BOTORCH)]
    curves = {name: np.full((4, 3), 0.5) + np.arange(4)[:, None] for name in names}
    curves[f"drop-wave, {BOTORCH}"] -= 0.4
    claims = synthetic.checks(curves)
    against = {claim: check.holds for claim, check in claims.items() if "BoTorch" in claim}
    assert len(against) == 3
    assert not any(against.values())


@pytest.mark.parametrize("peer", [peers.TPE, peers.CMA])
def test_a_peer_without_a_process_is_to_be_above(peer):
    name = f"drop-wave, {peer}"
    curves = {f"drop-wave, {m}": np.full((4, 3), 0.5) for m in METHODS}
    noise = np.arange(4)[:, None]
    above = synthetic.checks(curves | {name: curves["drop-wave, EGP-TS"] + 0.4 + 0.01 * noise})
    beneath = synthetic.checks(curves | {name: curves["drop-wave, EGP-TS"] - 0.4 + 0.01 * noise})
    for ours in (MIXTURE, FIRST):
        claim = f"drop-wave: {ours} below {peer}, difference"
        assert above[claim].holds
        assert beneath[claim].refuted


def test_only_peers_are_run_with_the_methods_compared(monkeypatch):
    here = peers.Peer(peers.at_random, (), "here")
    absent = here._replace(packages=("no_such_package",))
    for name, peer in zip(synthetic.OTHERS, (absent, here, here), strict=True):
        monkeypatch.setitem(synthetic.OTHERS, name, peer)
    alone = runner.Options(only=("peers", "eggholder"))
    assert synthetic._functions(alone) == ("eggholder",)
    assert synthetic._methods(alone) == (MIXTURE, FIRST, peers.TPE, peers.CMA)
    assert synthetic._functions(runner.Options(only=("peers",))) == tuple(synthetic.FUNCTIONS)
    everything = synthetic._methods(runner.Options())
    assert everything == (*METHODS, peers.TPE, peers.CMA)


def test_only_methods_that_fit_as_printed_are_run_and_one_is_no_worse_than_the_other(monkeypatch):
    for name in synthetic.OTHERS:
        monkeypatch.setitem(synthetic.OTHERS, name, peers.Peer(peers.at_random, (), "here"))
    alone = runner.Options(only=("printed", "drop-wave"))
    assert synthetic._functions(alone) == ("drop-wave",)
    ensemble, kernel = synthetic._methods(alone)
    assert METHODS[ensemble](5, 100).surrogate.period == 50
    assert METHODS[kernel](5, 100).surrogate.period == 1
    assert synthetic._functions(runner.Options(only=("printed",))) == tuple(synthetic.FUNCTIONS)
    level = 0.5 + 0.01 * np.arange(4)[:, None] * np.ones((4, 3))
    curves = {f"drop-wave, {ensemble}": level, f"drop-wave, {kernel}": level + 0.1}
    (claim,) = synthetic.checks(curves).values()
    assert claim.holds
    curves[f"drop-wave, {ensemble}"] = level + 0.3
    (claim,) = synthetic.checks(curves).values()
    assert claim.refuted


@pytest.mark.full
def test_peers_begin_at_the_points_of_our_methods():
    begun = []

    def at_corners(evaluate, initial, rounds, seed):
        begun.append(initial)
        for x in (*initial, *np.ones((rounds, initial.shape[1]))):
            evaluate(x)

    keys, function = jax.random.split(jax.random.key(0), 2), dropwave()
    regret = peers.regret(at_corners, function, keys, 3)
    ours = [
        search.traced(light(2, 3), Same(function=function), 3, key)[0][: search.INITIAL]
        for key in keys
    ]
    np.testing.assert_array_equal(begun, ours)
    seen = np.concatenate([begun, np.ones((2, 1, 2))], axis=1)
    best = np.max(jax.jit(jax.vmap(jax.vmap(function)))(jnp.asarray(seen, float)), axis=1)
    np.testing.assert_allclose(regret, np.tile((1 - best)[:, None], 3), atol=1e-5)


# ---------------------------------------------------------------- workers side by side


def test_what_has_ended_counts_by_time():
    curve, ended = np.array([[5.0, 3.0, 1.0]]), np.array([[1.0, 2.5, 4.0]])
    by_time = parallel.at_times(curve, ended, np.array([0.5, 1.0, 3.0, 9.0]))
    np.testing.assert_array_equal(by_time, [[np.nan, 5.0, 3.0, 1.0]])


@pytest.mark.full
def test_workers_start_from_the_same_points_and_end_in_order():
    keys = jax.random.split(jax.random.key(0), 2)
    domain = Finite(Cube(5).sample(jax.random.key(1), 50))  # nothing to search through
    method = lambda dim, evaluations: EGP(domain, Fixed(size=10))  # noqa: E731
    both = [parallel.measured(method, 2, waiting, keys, 4) for waiting in (True, False)]
    for regret, ended in both:
        assert regret.shape == ended.shape == (2, 4)
        assert (np.diff(regret, axis=1) <= 0).all()
        assert (np.diff(ended, axis=1) >= 0).all()
    waiting, free = both
    # Two who wait end together.
    np.testing.assert_array_equal(waiting[1][:, ::2], waiting[1][:, 1::2])
    assert (np.diff(free[1], axis=1) > 0).all()


def test_claims_about_workers_can_fail():
    names = [*(f"{K} waiting" for K in parallel.WORKERS), "8 not waiting"]
    names += [f"4 waiting, {rival}" for rival in parallel.RIVALS]
    noise = 1e-3 * np.random.default_rng(0).standard_normal((5, 1))
    same = {name: np.ones((5, 20)) + (noise if "8" in name else 0) for name in names}
    by_time = {name: np.ones((5, 20)) + (noise if "8" in name else 0) for name in names}
    claims = parallel.checks(same, by_time)
    assert len(claims) == 7
    strict = {name for name in claims if "better" in name}
    assert strict == {name for name, check in claims.items() if not check.holds}
    fast = by_time | {name: by_time[name] - 0.5 for name in names if "8" in name}
    assert all(check.holds for check in parallel.checks(same, fast).values())
    bad = same | {name: same[name] + 0.5 for name in ("4 waiting", "8 waiting", "8 not waiting")}
    assert sum(not check.holds for check in parallel.checks(bad, fast).values()) == 4


# ---------------------------------------------------------------- features beside the exact process


@pytest.mark.full
def test_more_features_are_nearer_to_the_exact_process():
    keys = jax.random.split(jax.random.key(0), 3)
    few, many = (evidence.compared(size, (12,), keys) for size in (20, 600))
    for distance, ratio in (few, many):
        assert distance.shape == ratio.shape == (3, 1)
    assert (np.abs(np.log(many[1])).mean() < 0.3 * np.abs(np.log(few[1])).mean()).all()
    assert many[0].mean() < few[0].mean()


def test_claims_about_features_can_fail():
    sizes = ("50 features", "1600 features")
    noise = 1e-3 * np.arange(4)[:, None] * np.ones((4, 2))
    apart = dict(zip(sizes, (0.5 + noise, 0.1 + noise), strict=True))
    ratio = dict(zip(sizes, (0.2 + noise, 0.95 + noise), strict=True))
    assert all(check.holds for check in evidence.checks(apart, ratio).values())
    other = [dict(zip(sizes, reversed(list(d.values())), strict=True)) for d in (apart, ratio)]
    assert not any(check.holds for check in evidence.checks(*other).values())


# ---------------------------------------------------------------- networks


@pytest.mark.full
def test_a_network_is_tuned_in_its_space(monkeypatch):
    monkeypatch.setitem(METHODS, "light", light)
    keys = jax.random.split(jax.random.key(0), 2)
    objective = Quadratic()
    share = network.best("light", objective, keys, 3)
    assert share.shape == (2, 3)
    assert (np.diff(share, axis=1) >= 0).all()
    assert ((share > 0) & (share <= 1)).all()


def test_claims_about_networks_can_fail():
    names = [f"{n}, {m}" for n in ("iris", "wine") for m in network.SHOWN]
    high, low = np.full((4, 3), 0.9), np.full((4, 3), 0.5) + 0.001 * np.arange(4)[:, None]
    alike = network.checks(dict.fromkeys(names, high))
    assert len(alike) == 2 * 5 + 1
    *no_worse, best = alike.values()
    assert all(check.holds for check in no_worse)
    assert (best.outcome, best.interval) == ("undecided", (0, 1))
    worse = {name: low if network.OURS in name else high for name in names}
    assert all(check.refuted for check in network.checks(worse).values())
    better = {name: high if network.OURS in name else low for name in names}
    assert all(check.holds for check in network.checks(better).values())


# ---------------------------------------------------------------- robots


def test_claims_about_robots_can_fail():
    names = [f"{n}, {m}" for n in robot.PROBLEMS for m in METHODS]
    near, far = np.full((10, 3), 0.1), np.full((10, 3), 2.0) + 0.01 * np.arange(10)[:, None]
    alike = robot.checks(dict.fromkeys(names, near))
    # Four of EGP-TS, three of 11 scales, one of EI, two of features and exact, one of fits as printed,
    # and one of the best mean.
    assert len(alike) == 2 * 12
    assert all(check.holds != ("nearer" in claim) for claim, check in alike.items())
    worse = {name: far if "EGP" in name else near for name in names}
    claims = robot.checks(worse)
    assert all((EXACT in claim) == check.holds for claim, check in claims.items())


@pytest.mark.full
def test_a_robot_gets_nearer():
    with warnings.catch_warnings():
        # As errors, the package's own deprecations crash the interpreter.
        warnings.simplefilter("ignore", DeprecationWarning)
        pytest.importorskip("Box2D")
    distances = robot.regret(light, 3, 0, 3, 0)
    assert distances.shape == (3,)
    assert (np.diff(distances) <= 0).all()
    assert (distances > 0).all()
