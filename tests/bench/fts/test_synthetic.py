import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from bench.fts import peers, synthetic
from bench.fts.peers import PeerSetting, Perturbed
from bench.tasks.synthetic import NOISE, POINTS, VALUES_VARIANCE, draws, grid
from jaxbo.objectives.families import unit_range


def waves(count):
    """Functions in [0, 1] with several peaks, cheaper than draws of a process."""
    x = grid()[:, 0]
    phases = jnp.linspace(0, 6, count)
    values = [jnp.sin(25 * x + phase) + jnp.sin(9 * x + 2 * phase) for phase in phases]
    return unit_range(jnp.stack(values))


def test_the_scaled_functions_have_the_variance_that_the_noise_of_the_model_is_taken_from(key):
    values = draws(key, 300)
    assert float(jnp.min(values)) == 0
    variance = float(jnp.mean(jnp.var(values, axis=1)))
    np.testing.assert_allclose(variance, VALUES_VARIANCE, rtol=0.1)


@pytest.mark.parametrize("distance", [peers.ALIKE, synthetic.UNLIKE])
def test_peers_see_the_functions_values_off_by_the_distance_and_the_target_nothing(key, distance):
    function = waves(1)[0]
    queries, values = jax.jit(peers.peers_data, static_argnums=4)(
        key, function, grid(), Perturbed(distance), 40
    )
    assert queries.shape == (40, 51, 1)
    assert np.isnan(values[:, 0]).all()
    places = np.rint(np.asarray(queries[:, 1:, 0]) * (POINTS - 1)).astype(int)
    assert all(len(set(column)) == 40 for column in places.T)
    off = np.asarray(values)[:, 1:] - np.asarray(function)[places]
    noise = np.abs(off) - distance
    np.testing.assert_allclose(np.mean(off > 0), 0.5, atol=0.06)
    if distance > 1:  # far enough apart to tell the sign from the noise
        np.testing.assert_allclose(noise.std(), NOISE**0.5, rtol=0.1)
        np.testing.assert_allclose(noise.mean(), 0, atol=0.02)


@pytest.mark.full
def test_the_cheap_start_is_the_warm_start_in_all_that_is_asked(key):
    setting = PeerSetting(observations=5, features=10)
    informers = synthetic.federated(setting, own=None)
    algorithm = synthetic.federated(setting, own=synthetic.own_model(rounds=3))
    function = waves(1)[0]
    known = peers.peers_data(key, function, grid(), Perturbed(0.02), 5)
    cheap = jax.jit(peers.start)(informers, algorithm, key, *known)
    whole = jax.jit(lambda a, k, *data: a.warm_start(a.init(k), *data))(algorithm, key, *known)

    def asked(state):
        target = jax.tree.map(lambda leaf: leaf[0], state.clients)
        own = target.beliefs.own.posterior
        known = state.clients.sent, target.beliefs.message
        return state.round, state.shared, known, own.mean, own.count

    for ours, theirs in zip(
        jax.tree.leaves(asked(cheap)), jax.tree.leaves(asked(whole)), strict=True
    ):
        if jnp.issubdtype(ours.dtype, jax.dtypes.prng_key):
            ours, theirs = jr.key_data(ours), jr.key_data(theirs)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.full
def test_both_methods_begin_at_the_same_point_of_the_same_function(key):
    functions, keys = waves(10), jr.split(key, 10)
    setting = PeerSetting(observations=40, features=50)
    rest = functions, grid(), 5, keys
    alone = peers.values_of(synthetic.alone(rounds=5), *rest)
    federated = peers.values_of(
        synthetic.federated(setting, synthetic.own_model(rounds=5)),
        *rest,
        synthetic.federated(setting, None),
        Perturbed(0.02),
        40,
    )
    np.testing.assert_array_equal(alone[:, 0], federated[:, 0])
    regret = peers.regret(federated)
    assert regret.shape == (10, 5)
    assert (np.diff(regret) <= 0).all()
    # Peers that know the target's function take it close to the optimum at once.
    assert regret[:, -1].mean() < 0.6 * peers.regret(alone)[:, -1].mean()


def _curves(alone, others):
    alike = [PeerSetting(t_n, M) for t_n in peers.OBSERVATIONS for M in synthetic.FEATURES]
    unlike = PeerSetting(100, 100, synthetic.UNLIKE, peers.FAST)
    names = [setting.name for setting in [*alike, unlike]]
    return {"TS": alone, **dict(zip(names, others, strict=True))}, alike, unlike


def test_claims_hold_of_curves_that_the_paper_shows_and_fail_of_equal_ones():
    noise = 0.01 * np.random.default_rng(0).standard_normal((8, 50, 30))
    levels = [0.4, 0.4, 0.4, 0.4, 0.3, 0.2, 0.8]
    shown = _curves(0.8 + noise[0], [a + b for a, b in zip(levels, noise[1:], strict=True)])
    assert all(check.holds for check in synthetic.checks(*shown).values())
    equal = synthetic.checks(*_curves(noise[0], list(noise[1:])))
    *ahead, same = [check.holds for check in equal.values()]
    assert not any(ahead)
    assert same
