"""What is tuned under privacy, against plain training; the settings, the losses and the claims."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from bench.dp import landmine as dp_landmine
from bench.dp import privacy_curve
from bench.dp.privacy_loss import Loss, loss
from bench.tasks import digits, eating, har, landmine, network
from bench.tasks.data import DataMissingError
from jaxbo.algos.dp_fts_de import DPFTSDE
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Cube, Finite

pytestmark = pytest.mark.filterwarnings("ignore::jaxbo.SimulationWarning")


def test_digits_are_cut_into_the_patches_of_a_convolution(key):
    images = np.asarray(jr.normal(key, (3, 28, 28)))
    filters = jr.normal(key, (25, 4))
    patches = jnp.asarray(digits.cut(images))
    kernel = filters.reshape(5, 5, 1, 4)
    layout = ("NHWC", "HWIO", "NHWC")
    seen = jax.lax.conv_general_dilated(
        jnp.asarray(images)[..., None], kernel, (2, 2), "VALID", dimension_numbers=layout
    )
    pooled = seen.reshape(3, 6, 2, 6, 2, 4).mean((2, 4)).reshape(3, 36, 4)
    ours = (patches @ filters).reshape(3, 36, 4, 4).mean(2)
    np.testing.assert_allclose(ours, pooled, rtol=1e-3, atol=1e-4)


def test_a_network_learns_a_writers_digits(tmp_path, monkeypatch, key):
    rng = np.random.default_rng(0)
    writer = np.repeat(np.arange(50), 12)
    y = np.tile(np.arange(12) % 10, 50)
    images = np.zeros((600, 28, 28))
    for i, digit in enumerate(y):  # a bar whose place is the digit
        images[i, 2 * digit + 3 : 2 * digit + 7] = 255
    images = np.clip(images + 20 * rng.random(images.shape), 0, 255).astype(np.uint8)
    is_test = np.tile(np.arange(12) >= 9, 50)
    np.savez(tmp_path / "digits_by_writer.npz", images=images, y=y, writer=writer, is_test=is_test)
    monkeypatch.setenv("JAXBO_DATA", str(tmp_path))
    digits.writers.cache_clear()
    objective = digits.writers()
    digits.writers.cache_clear()
    points = jnp.asarray([[0.5, 0.0, 0.0], [0.0, 0.0, 0.0], [0.5, 0.0, 1.0]])
    train = jax.jit(jax.vmap(lambda x: objective(key, jnp.asarray(7), x)))
    with jax.numpy_dtype_promotion("standard"):  # inside of optax's Adam
        good, idle, _ = np.asarray(train(points))
    # Of its three test images one is a digit that it never saw.
    assert good == pytest.approx(2 / 3, abs=1e-6)
    assert idle < good


def test_the_table_of_svms_is_what_each_would_score(tmp_path, monkeypatch):
    monkeypatch.setattr(dp_landmine, "FIELDS", 2)
    monkeypatch.setattr(
        landmine.Tuning, "__call__", lambda self, agent, x: float(10 * agent + x[0] + x[1] / 7)
    )
    points = dp_landmine.grid(4)
    assert len(points) == 16
    with ThreadPoolExecutor(2) as executor:
        values = dp_landmine.trained(tmp_path, executor, points)
        np.testing.assert_allclose(values[1], 10 + points[:, 0] + points[:, 1] / 7)
        # What was saved is not computed again.
        monkeypatch.setattr(landmine.Tuning, "__call__", lambda *_: 1 / 0)
        np.testing.assert_array_equal(dp_landmine.trained(tmp_path, executor, points), values)


def _bowl(key, agent, x):
    return 0.8 - jnp.sum((x - 0.4) ** 2) + 0.01 * jr.normal(key, dtype=x.dtype)


@pytest.mark.full
def test_what_is_measured_never_grows(key, monkeypatch):
    monkeypatch.setattr(privacy_curve, "REFIT", None)  # fits take most of the time to compile
    domain = Finite(Cube(2).sample(jr.key(1), 50))  # nothing to search through
    problem = privacy_curve.PrivateProblem(domain, 4, _bowl, "error", batch=2, trains=False)
    setting = privacy_curve.SETTINGS["z = 1.0, q = 0.35"]
    curve = np.asarray(privacy_curve.shortfall(problem, setting, jr.split(key, 2), 3))
    assert curve.shape == (2, 3)
    assert (np.diff(curve, axis=1) <= 0).all()
    assert (curve > 0.1).all()
    assert (curve < 1).all()


def _everything():
    return (
        privacy_curve.SETTINGS
        | privacy_curve.WITHOUT_REGIONS
        | privacy_curve.WEIGHTS
        | privacy_curve.PARTITIONS
        | privacy_curve.FIXED_SIZE
        | privacy_curve.NOT_ADAPTIVE
    )


@pytest.mark.full
def test_every_setting_is_a_method_and_costs_what_its_mechanism_does():
    problem = privacy_curve.PrivateProblem(Cube(3), 30, _bowl, "error", batch=1, trains=False)
    assert len(privacy_curve.SETTINGS) == 12
    for setting in _everything().values():
        mechanism = setting.mechanism(30)
        algorithm = privacy_curve.method(problem, setting.regions, mechanism, setting.weighting, 60)
        assert isinstance(algorithm, DPFTSDE if setting.regions else TS)
        assert algorithm.capacity == 70

    def cost(name):
        return loss(_everything()[name].mechanism(30), 30, 60)

    assert cost("FTS-DE") == Loss()
    noisy = cost("z = 4.0, q = 0.35")
    assert 0 < noisy.pld < noisy.renyi < noisy.moments
    assert noisy.pld < noisy.strict
    # The regions and their weights cost nothing: sensitivity is S, and noise z times it.
    assert cost("z = 4.0, q = 0.35, one region") == noisy
    fixed = cost("z = 4.0, q = 0.35, fixed size")
    assert fixed.pld is fixed.moments is None
    assert fixed.renyi > noisy.renyi  # one agent stands for another: twice the sensitivity


def test_weights_fall_from_a_ratio_to_equality():
    assigned = jnp.arange(6) % 2
    weighting = eqx.filter_jit(privacy_curve.Ratio(1000.0, hold=10, decay=30))
    for t, ratio in (1, 1000), (11, 1000), (40, 1), (60, 1):
        inside, outside = np.asarray(weighting(jnp.asarray(t), assigned, 2))[0, :2]
        assert float(inside / outside) == pytest.approx(ratio, rel=1e-4)
        assert float(3 * (inside + outside)) == pytest.approx(1, rel=1e-5)
    middle = np.asarray(weighting(jnp.asarray(26), assigned, 2))[1]
    assert float(middle[1] / middle[0]) == pytest.approx(1 + 999 * 14 / 29, rel=1e-4)
    steep = eqx.filter_jit(privacy_curve.Ratio(40.0, 10, 30, power=2.0))
    square = np.asarray(steep(jnp.asarray(1), assigned, 2))[0]
    assert float(square[0] / square[1]) == pytest.approx(1600, rel=1e-4)


def test_claims_are_about_the_end():
    rng = np.random.default_rng(0)
    names = list(_everything())
    losses = {name: Loss() for name in names}
    losses["z = 1.0, q = 0.1"] = Loss(3.0, 2.0, 1.0, 2.0)
    losses["z = 1.0, q = 0.35"] = Loss(13.0, 12.0, 11.0, 12.0)
    losses["z = 1.0, q = 0.15"] = Loss(4.0, 4.5, 1.0, 2.0)

    def level(order):
        return {n: order[i] + 0.01 * rng.random((30, 5)) for i, n in enumerate(names)}

    falling = privacy_curve.checks(level(np.linspace(1, 0, len(names))), losses)
    rising = privacy_curve.checks(level(np.linspace(0, 1, len(names))), losses)
    assert falling["z = 1.0, q = 0.1 below TS, difference"].holds
    assert not rising["z = 1.0, q = 0.1 below TS, difference"].holds
    assert "z = 1.0, q = 0.35 below TS, difference" not in falling
    assert rising["z = 3.0, q = 0.35 below z = 3.0, q = 0.35, one region, difference"].holds
    assert not falling["z = 3.0, q = 0.35 below z = 3.0, q = 0.35, one region, difference"].holds
    later = "FTS-DE, P = 6 no worse than FTS-DE by more than 5 %, ratio"
    assert falling[later].holds
    assert rising[later].refuted
    assert falling["z = 1.0, q = 0.1: Rényi loss below that by moments"].holds
    dear = falling["z = 1.0, q = 0.15: Rényi loss below that by moments"]
    assert dear.refuted
    assert dear.figure == 4.5
    # Fig. 3, 8, 9 and 10, 11 with three losses, 12b.
    assert len(falling) == 6 + 5 + 12 + (9 + 3) + 1


@pytest.mark.parametrize(
    "load",
    [
        partial(har.movements, har.DP_FTS_DE),
        eating.meals,
        digits.writers,
        landmine.fields,
        network.mnist,
        network.breast_cancer,
        network.traffic,
    ],
)
def test_missing_data_is_named_with_its_source(load, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXBO_DATA", str(tmp_path))
    getattr(load, "func", load).cache_clear()
    with pytest.raises(DataMissingError, match=r"npz is missing: .* It holds"):
        load()
