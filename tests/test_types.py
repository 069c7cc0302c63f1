"""Numbers as the package holds them."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from jaxbo.domains.base import Finite
from jaxbo.kernels.choosing.policy import UCB
from jaxbo.kernels.models.fit import Bounds
from jaxbo.kernels.models.fitted import Fitted
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import SquaredExponential
from jaxbo.types import floating

DTYPE = jnp.zeros(()).dtype
INFO = np.finfo(DTYPE)
#: In float64 no number of Python's is too large.
narrow = pytest.mark.skipif(INFO.bits == 64, reason="float64 holds them")


@narrow
@pytest.mark.parametrize(
    "make",
    [
        lambda x: Fixed(noise=x),
        lambda x: Fitted(5, noise=np.float64(x)),
        UCB,
        lambda x: SquaredExponential(0.2, x),
        lambda x: SquaredExponential(np.asarray([0.2, x])),
        lambda x: Finite(np.asarray([[0.5], [x]])),
        lambda x: Bounds(noise=(min(x, 1.0), max(x, 1.0))),
    ],
)
@pytest.mark.parametrize("x", [1e300, 1e-50, 3.5e38, 1e-38])
def test_numbers_that_the_precision_loses_are_refused_as_they_came(make, x):
    with pytest.raises(ValueError, match=re.escape(f"{x} is lost in float32, which holds 0")):
        make(x)


@pytest.mark.usefixtures("as_users_have_it")
@pytest.mark.parametrize("value", [None, "1.5", [None, 1.0], ["1.5"], {}, [1.0, [2.0]]])
def test_what_is_no_number_is_refused(value):
    with pytest.raises((TypeError, ValueError)):
        floating(value)


@pytest.mark.parametrize("make", [lambda x: Fixed(noise=x), UCB])
def test_whole_numbers_of_any_length_are_refused(make):
    with pytest.raises(ValueError, match="lost in float"):
        make(10**400)


@pytest.mark.parametrize("x", [0, -0.0, 1, True, 10**10, float(INFO.max), -float(INFO.tiny)])
def test_other_numbers_are_held(x):
    held = floating(x)
    assert held.dtype == DTYPE
    assert not held.weak_type
    assert float(held) == pytest.approx(float(x), rel=1e-6)


def test_what_is_not_finite_is_for_the_caller_to_judge():
    assert float(floating(np.inf)) == np.inf
    assert np.isnan(floating(np.asarray([np.nan, 1.0]))).tolist() == [True, False]


@pytest.mark.slow
def test_arrays_keep_their_precision():
    assert floating(jnp.ones(2, jnp.float16)).dtype == jnp.float16
    assert floating(np.ones(2, np.float32)).dtype == np.float32
