"""A function of means and variances, which knows its derivatives by those of the moments."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxbo.kernels.models.predictions import AbstractPredictions, OfPredictions, composed


class Waves(AbstractPredictions):
    """Two means and two variances that are known as formulas."""

    def __call__(self, x):
        waves = jnp.stack([jnp.sum(jnp.sin(3 * x)), jnp.prod(jnp.cos(x))])
        return waves, 1 + waves**2

    def many(self, points):
        return jax.vmap(self)(points)

    def near(self, x):
        # The second-order polynomial around x.
        push = jax.jacfwd(self)
        slopes, bends = push(x), jax.jacfwd(push)(x)

        def near(p):
            return tuple(
                a + b @ p + jnp.einsum("kij,i,j->k", c, p, p) / 2
                for a, b, c in zip(self(x), slopes, bends, strict=True)
            )

        return near


def outer(means, variances):
    return jnp.sum(jnp.exp(means) * jnp.sqrt(variances)) + means[0] * variances[1]


@pytest.mark.parametrize("dim", [2, 9])
def test_a_function_of_predictions_has_the_derivatives_of_the_whole(dim):
    function, plain = composed(Waves(), outer), lambda x: outer(*Waves()(x))
    assert isinstance(function, OfPredictions)
    points = jnp.asarray(np.random.default_rng(0).random((4, dim)))

    def around(x):
        value, gradient, curvature = function.expansion(x)
        return value, gradient, jax.vmap(curvature)(jnp.eye(dim))

    @jax.jit
    def both(points):
        whole = jax.value_and_grad(plain), jax.hessian(plain)
        return jax.vmap(around)(points), [jax.vmap(of)(points) for of in whole]

    (values, gradients, hessians), ((value, gradient), hessian) = both(points)
    for mine, theirs in ((values, value), (gradients, gradient), (hessians, hessian)):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(eqx.filter_jit(function.many)(points), value, rtol=1e-5)


def test_any_other_function_is_composed_point_by_point():
    function = composed(lambda x: (x, x**2), outer)
    assert not isinstance(function, OfPredictions)
    x = jnp.asarray([0.3, 0.7])
    np.testing.assert_allclose(function(x), outer(x, x**2))
