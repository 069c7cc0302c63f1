"""The tree of keys, derived again by hand."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np

from jaxbo.algos.base import keys


def data(*some):
    return [np.asarray(jr.key_data(key)) for key in some]


def test_the_tree_is_as_it_is_drawn(key):
    init, design, rounds = jr.split(key, 3)
    run = keys.run_keys(key)
    np.testing.assert_array_equal(data(*run), data(init, design, rounds))
    np.testing.assert_array_equal(data(*keys.init_keys(init)), data(*jr.split(init)))
    of_row = jr.split(jr.fold_in(design, 2))
    np.testing.assert_array_equal(data(*keys.design_keys(run, jnp.asarray(2))), data(*of_row))
    of_round = jr.split(jr.fold_in(rounds, 7))
    np.testing.assert_array_equal(data(*keys.round_keys(run, jnp.asarray(7))), data(*of_round))
    np.testing.assert_array_equal(data(*keys.ask_keys(init)), data(*jr.split(init, 3)))
    np.testing.assert_array_equal(data(*keys.release_keys(init)), data(*jr.split(init)))
    # The compiled loop has one program for both.
    for before, expected in ((True, of_row), (False, jr.split(jr.fold_in(rounds, 2)))):
        found = keys.row_keys(run, jnp.asarray(before), jnp.asarray(2))
        np.testing.assert_array_equal(data(*found), data(*expected))


def test_every_agent_has_a_key_of_its_own_whoever_else_there_is(key):
    many = np.asarray(jr.key_data(keys.agent_keys(key, jnp.arange(1000))))
    assert len(np.unique(many, axis=0)) == 1000
    for number in (0, 7, 999):
        np.testing.assert_array_equal(many[number], data(keys.agent_key(key, number))[0])
        np.testing.assert_array_equal(many[number], data(jr.fold_in(key, number))[0])
