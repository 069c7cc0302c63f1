"""The learned prior on tabulated tuning tasks."""

import jax
import jax.random as jr
import numpy as np
import pytest

from bench.prior import owners, setting
from bench.tasks import tabulated
from jaxbo.kernels.models.surrogate import Fixed


@pytest.mark.full
@pytest.mark.parametrize("method", ["TS", "EI, fitted"])
def test_regret_falls_and_is_in_percentage_points(method):
    regret = np.asarray(owners.program("cancer-svm", method)(jr.split(jr.key(1), 2)))
    assert regret.shape == (2, owners.TOTAL)
    assert (np.diff(regret, axis=1) <= 1e-4).all()
    values = np.asarray(tabulated.load("cancer-svm").values)
    assert (regret >= -1e-4).all()
    assert (regret <= 100 * np.ptp(values)).all()
    assert (regret[:, -1] < regret[:, 0]).all()


def test_features_are_longer_beyond_a_cube_and_alike_for_all_methods():
    assert [owners.length(dim) for dim in (2, 3)] == [0.2, 0.2]
    distances = [np.sqrt(dim / 6) for dim in (2, 6)]  # mean square of two random points' distance
    assert owners.length(6) / owners.length(2) == pytest.approx(distances[1] / distances[0])
    federated = owners.federated("digits-network", tabulated.load("digits-network"))
    leaves = jax.tree.leaves(federated, is_leaf=lambda part: isinstance(part, Fixed))
    models = [leaf for leaf in leaves if isinstance(leaf, Fixed)]
    assert len(models) == len(federated)
    lengths = [np.asarray(model.kernel.length_scale) for model in models]
    np.testing.assert_allclose(lengths, owners.length(6), rtol=1e-6)
    np.testing.assert_allclose([np.asarray(model.noise) for model in models], 1e-2, rtol=1e-6)


def test_all_methods_are_compared():
    objective = tabulated.load("cancer-svm")
    federated = owners.federated("cancer-svm", objective)
    assert {*federated, *owners.FITTED} == set(owners.METHODS)
    assert set(owners.RIVALS) == {name for name in owners.METHODS if "learned" not in name}
    assert setting.CLAIMED in owners.METHODS
