"""What the features of `fts-nystrom` are compared by."""

import jax
import jax.random as jr
import numpy as np
import pytest

from bench.fts import nystrom
from jaxbo.kernels.processes.covariance import SquaredExponential


@pytest.mark.full
@pytest.mark.parametrize("label", nystrom.BASES)
def test_the_error_of_a_kernel_is_that_of_its_features(label):
    basis, dim, size = nystrom.BASES[label], 2, 20
    found = jax.jit(lambda key: nystrom.kernel_error(basis, dim, size, key))(jr.key(3))
    kernel = SquaredExponential(nystrom.LENGTH_SCALES[dim])
    at = np.asarray(nystrom.points(dim))[:: nystrom.POINTS // nystrom.PAIRED]
    squares = ((at[:, None].astype(float) - at[None]) ** 2).sum(-1)
    exact = np.exp(-squares / 2 / nystrom.LENGTH_SCALES[dim] ** 2)
    errors = []
    drawn = jax.jit(lambda key: jax.vmap(basis(key, kernel, dim, size))(at))
    for key in jr.split(jr.key(3), nystrom.DRAWS):
        phi = np.asarray(drawn(key), float)
        errors.append(np.mean((phi @ phi.T - exact) ** 2))
    np.testing.assert_allclose(found, np.sqrt(np.mean(errors)), rtol=1e-3)


@pytest.mark.full
def test_with_enough_inducing_points_nothing_is_lost():
    inducing, fourier = (
        nystrom.kernel_error(nystrom.BASES[name], 1, 80, jr.key(3))
        for name in ("Nystrom", "sine-cosine")
    )
    assert inducing < 1e-5
    assert fourier > 1e-2
