"""Exploration ends once enough maximizers stay."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxbo.kernels.choosing.stays import Stays, not_looked

HERE = jnp.asarray([[0.1, 0.2], [0.5, 0.5], [0.9, 0.3], [0.4, 0.8]])


@pytest.mark.parametrize(
    ("moved", "present", "over"),
    [
        ([0.0, 0.0, 0.0, 0.0], [1, 1, 1, 1], True),
        ([0.05, -0.05, 0.05, 0.5], [1, 1, 1, 1], True),  # three of four
        ([0.05, 0.0, 0.1, 0.5], [1, 1, 1, 1], False),
        ([0.0, 0.0, 0.5, 0.5], [1, 1, 0, 0], True),  # all of those who are heard
        ([0.0, 0.5, 0.0, 0.0], [1, 1, 0, 0], False),
        ([0.0, 0.0, 0.0, 0.0], [0, 0, 0, 0], False),
    ],
)
def test_it_is_over_if_enough_of_the_agents_who_are_heard_stay(moved, present, over):
    rule, here = Stays(distance=0.06, share=0.75), jnp.asarray(present, bool)
    first = rule.looked(not_looked(4, 2), HERE, jnp.ones((4,), bool))
    assert not first.over  # nothing to compare with
    places = HERE.at[:, 1].add(jnp.asarray(moved))
    second = rule.looked(first, places, here)
    assert bool(second.over) == over
    # An agent that was not heard is compared with the place where it was heard last.
    expected = np.where(np.asarray(here)[:, None], places, HERE)
    np.testing.assert_array_equal(second.maximizers, expected)
