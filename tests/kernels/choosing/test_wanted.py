"""A batch computes a function for the few agents who need it, with the results that they have alone."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from jaxbo.kernels.choosing import wanted
from jaxbo.kernels.choosing.wanted import if_wanted

SIZE = 200


def found(own, common, flag):
    """A computation with constants of an agent, of all, and of the program."""

    def compute(given):
        return {"sum": jnp.sum(given * common) + own, "given": given + jnp.arange(3.0)}

    given = own * jnp.ones(3)
    return if_wanted(flag, compute, given, {"sum": jnp.zeros(()), "given": jnp.full((3,), -1.0)})


def expected(own, common, flag):
    on = {"sum": own * np.sum(common) + own, "given": own * np.ones(3) + np.arange(3)}
    return on if flag else {"sum": 0.0, "given": np.full(3, -1.0)}


def same(tree, other):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), tree, other)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_each_agent_of_a_batch_has_what_it_has_alone(share, key):
    flags = np.asarray(jr.bernoulli(key, share, (SIZE,)))
    own, common = np.asarray(jr.normal(key, (SIZE,))), np.arange(3.0)
    of_all = jax.jit(jax.vmap(found, (0, None, 0)))(own, common, flags)
    for n in range(SIZE):
        one = jax.tree.map(lambda leaf, n=n: leaf[n], of_all)
        same(one, expected(own[n], common, flags[n]))


@pytest.mark.slow
def test_batches_of_batches_of_any_size_agree(key):
    flags = np.asarray(jr.bernoulli(key, 0.1, (2, SIZE)))
    own, common = np.asarray(jr.normal(key, (2, SIZE))), np.asarray(jr.normal(key, (2, 3)))
    inner = jax.vmap(found, (0, None, 0))
    nested = jax.jit(jax.vmap(inner))(own, common, flags)
    outer = jax.jit(jax.vmap(jax.vmap(found, (0, 0, 0)), (1, None, 1), out_axes=1))
    same(nested, outer(own, common, flags))
    for i in range(2):
        same(jax.tree.map(lambda leaf, i=i: leaf[i], nested), inner(own[i], common[i], flags[i]))
        for n in (0, 100, SIZE - 1):
            one = jax.tree.map(lambda leaf, i=i, n=n: leaf[i, n], nested)
            same(one, expected(own[i, n], common[i], flags[i, n]))


def test_a_wish_of_all_is_computed_for_all(key):
    own = np.asarray(jr.normal(key, (SIZE,)))
    for flag in (True, False):
        of_all = jax.vmap(found, (0, None, None))(own, np.arange(3.0), jnp.asarray(flag))
        one = jax.tree.map(lambda leaf: leaf[7], of_all)
        same(one, expected(own[7], np.arange(3.0), flag))


@pytest.mark.slow
def test_a_large_batch_takes_as_many_steps_as_agents_need(monkeypatch):
    """Counted by a callback: 130 agents who want it are three steps of 64."""
    calls = []

    def counted(flag, own):
        def compute(given):
            jax.debug.callback(lambda value: calls.append(float(value)), given)
            return given * 2

        return if_wanted(flag, compute, own, own)

    own = jnp.arange(1000.0)
    for many, steps in ((0, 0), (1, 1), (64, 1), (130, 3)):
        calls.clear()
        flags = (own >= 300) & (own < 300 + many)
        result = jax.jit(jax.vmap(counted))(flags, own)
        jax.effects_barrier()
        np.testing.assert_array_equal(result, np.where(flags, 2 * own, own))
        assert len(calls) == steps * wanted.LEAST
