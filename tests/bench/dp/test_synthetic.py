"""Settings, losses and claims of the private synthetic."""

import jax
import numpy as np
import pytest

from bench import tables
from bench.dp import synthetic
from bench.dp.privacy_loss import Loss, loss
from bench.dp.signal import clipped
from bench.runner import Options
from jaxbo.algos.dp_fts_de import DPFTSDE
from jaxbo.algos.ts import TS
from jaxbo.runs.compiled import run

pytestmark = pytest.mark.filterwarnings("ignore::jaxbo.SimulationWarning")


@pytest.mark.full
@pytest.mark.parametrize(
    ("q", "z", "printed"),
    [
        pytest.param(0.15, 1.0, 5.934, marks=pytest.mark.full),
        (0.25, 1.0, 9.908),
        pytest.param(0.5, 1.0, 20.123, marks=pytest.mark.full),
        pytest.param(0.25, 1.2, 7.391, marks=pytest.mark.full),
        pytest.param(0.25, 1.5, 5.223, marks=pytest.mark.full),
    ],
)
def test_losses_are_those_the_paper_prints_and_the_tight_ones_are_smaller(q, z, printed):
    cost = loss(synthetic.private(q=q, z=z).mechanism, synthetic.AGENTS, 40)
    assert round(cost.moments, 3) == printed
    assert 0.5 * cost.moments < cost.pld < 0.8 * cost.moments
    assert cost.pld < cost.renyi
    assert cost.pld < cost.strict


def test_every_setting_is_a_method_and_without_noise_costs_nothing():
    for settings in synthetic.FIGURES.values():
        for setting in settings.values():
            sizes, numbers = synthetic._parts(setting)
            algorithm = synthetic.method(sizes, numbers, 40)
            assert isinstance(algorithm, DPFTSDE if sizes.regions else TS)
            assert algorithm.capacity == 50
            if setting is not None and setting.z == 0:
                assert loss(setting.mechanism, setting.agents, 40) == Loss()


@pytest.mark.full
def test_regret_never_grows_and_methods_share_their_functions():
    keys = jax.random.split(jax.random.key(0), 2)
    draws = synthetic._draws(jax.random.key(1), 2, 1)
    assert (np.asarray(draws).min(2), np.asarray(draws).max(2)) == (
        pytest.approx(np.zeros((2, 1)), abs=1e-6),
        pytest.approx(np.ones((2, 1)), abs=1e-6),
    )
    sizes, numbers = synthetic._parts(synthetic.SyntheticSetting())
    regret = np.asarray(synthetic._regret(sizes._replace(agents=8), numbers, draws, keys, 3))
    assert regret.shape == (2, 3)
    assert (np.diff(regret, axis=1) <= 0).all()
    assert (regret >= 0).all()


def test_noise_is_in_proportion_to_z_and_a_small_bound_clips_all():
    keys = jax.random.split(jax.random.key(0), 2)
    draws = synthetic._draws(jax.random.key(1), 2, 1)

    def looks(**settings):
        sizes, numbers = synthetic._parts(synthetic.private(**settings))
        few = sizes._replace(agents=8)
        return np.asarray(synthetic._looks(few, numbers, draws, keys, 2)).T

    once, some = looks()
    assert once.shape == some.shape == (2,)
    assert (once > 0).all()
    np.testing.assert_allclose(looks(z=1.5)[0], 1.5 * once, rtol=1e-5)
    np.testing.assert_array_equal(looks(S=0.01)[1], 1)
    np.testing.assert_array_equal(looks(S=1000.0)[1], 0)


def test_private_rows_of_a_result_have_noise_and_clipping():
    private, open_one = "2d: noise, z = 1.0", "2a: distributed exploration, FTS"
    curve = {"mean": [0.2, 0.1], "se": [0.0, 0.0]}
    one = {"final": {"mean": 0.1, "se": 0.0, "n": 2}, "curve": curve}
    older = {
        "experiment": "dp-synthetic",
        "settings": {"losses": {}},
        "methods": {open_one: one, private: one},
    }
    loud, shortened = synthetic.LOOKS
    looks = {loud: {private: 12.34}, shortened: {private: 0.0123}}
    newer = older | {"settings": {"losses": {}, **looks}}
    before, after = (tables.TABLES["dp-synthetic"]({"made": made}) for made in (older, newer))
    assert loud not in before[0]
    assert [row[:-2] for row in after] == before
    assert [row[-2:] for row in after] == [
        [loud, shortened],
        ["", ""],
        ["12.3", "1.2 %"],
    ]


def test_claims_are_about_mean_regret():
    rng = np.random.default_rng(0)
    names = [f"{f}, {n}" for f, settings in synthetic.FIGURES.items() for n in settings]

    def level(order):
        return {name: order[i] + 0.01 * rng.random((30, 5)) for i, name in enumerate(names)}

    falling = synthetic.checks(level(np.linspace(1, 0, len(names))))
    rising = synthetic.checks(level(np.linspace(0, 1, len(names))))
    claim = "2a: distributed exploration, FTS below TS, difference of mean regrets"
    assert falling[claim].holds
    assert rising[claim].refuted
    assert len(falling) >= 16


SETTINGS = {s for settings in synthetic.FIGURES.values() for s in settings.values()}


def test_every_setting_has_a_file_of_its_own():
    assert len({synthetic._named(setting) for setting in SETTINGS}) == len(SETTINGS)


def test_losses_are_stated_before_anything_is_measured(monkeypatch, tmp_path):
    def missing(*_):
        raise ImportError("no accountant")

    monkeypatch.setattr(synthetic, "loss", missing)
    monkeypatch.setattr(synthetic, "parts", lambda *_: pytest.fail("measured first"))
    with pytest.raises(ImportError, match="no accountant"):
        synthetic._run(Options(out=tmp_path))


def test_regret_by_loss_is_of_settings_that_differ_in_q_or_z_alone():
    rng = np.random.default_rng(0)
    known = {setting: rng.random((3, 4)) for setting in SETTINGS}
    losses = {setting: Loss() for setting in SETTINGS}
    private = synthetic.private
    for epsilon, setting in enumerate([private(q=0.15), private(), private(q=0.5), private(z=1.2)]):
        losses[setting] = Loss(pld=epsilon)
    losses[private(z=1.5)] = Loss(pld=-1.0)
    by_q, by_z = synthetic._by_loss(known, losses).values()
    assert [point[0] for point in by_q] == [0, 1, 2]
    assert [point[0] for point in by_z] == [-1, 1, 3]
    assert by_q[1][1] == pytest.approx(known[private()].mean())
    assert synthetic._by_loss({None: known[None]}, losses) == {}


def test_messages_are_clipped_if_their_norm_is_above_the_bound(key):
    sizes, numbers = synthetic._parts(synthetic.private(S=9.0))
    sizes = sizes._replace(agents=8)
    method = synthetic.method(sizes, numbers, 2)
    objective, run_key = synthetic._objective(sizes, numbers, synthetic._draws(key, 1, 1)[0], key)
    start_key, rest = jax.random.split(run_key)
    state, _ = run(method, objective, 0, start_key, initial=synthetic.INITIAL)
    message_key, _ = jax.random.split(jax.random.split(rest, 1)[0])
    norms = np.linalg.norm(method.vectors(method.messages(message_key, state)), axis=1)
    expected = (norms > 9.0 / np.sqrt(2)).mean()
    assert 0 < expected < 1
    assert float(clipped(run_key, method, objective, synthetic.INITIAL, 1)) == pytest.approx(
        expected
    )
