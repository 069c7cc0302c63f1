"""Claims about policies under a prior that agents learn together."""

import numpy as np
import pytest

from bench.prior import policies
from jaxbo.kernels.choosing.policy import UCB, Thompson
from jaxbo.schedules import InverseSqrt


def made(others, safe):
    """Regret 1 of the default, and so many times that of other policies and with the safeguard."""
    spread = 1 + 0.01 * np.arange(30)[:, None] * np.ones(20)
    times = {policy: 1.0 if policy == "EI" else others for policy in policies.POLICIES}
    times |= {f"{policy}, mixing": safe * times[policy] for policy in policies.SAFE}
    return {(name, one): times[one] * spread for name in policies.NAMES for one in times}


@pytest.mark.parametrize(("others", "holds"), [(1.0, True), (0.9, False)])
def test_the_default_is_beside_the_better_of_the_others(others, holds):
    found = policies.checks(made(others, 1.0))
    about = [check.holds for claim, check in found.items() if "no worse than" in claim]
    assert about == [holds] * 9


@pytest.mark.parametrize(("safe", "held"), [(1.0, 18), (1.2, 12), (1.5, 8), (3.0, 0)])
def test_the_safeguard_may_cost_a_part_where_functions_have_something_in_common(safe, held):
    found = policies.checks(made(1.0, safe))
    about = {claim: check.holds for claim, check in found.items() if "without mixing" in claim}
    # All, those with something in common, and of these those from ten evaluations on.
    assert sum(about.values()) == held
    assert about["unrelated, EI: after 5, at most 1.05 times the regret without mixing, ratio"] == (
        safe == 1
    )


def test_methods_differ_in_policy_and_safeguard():
    found = {method: policies.algorithm(method) for method in policies.METHODS}
    assert isinstance(found["UCB"].policy, UCB)
    assert isinstance(found["Thompson, mixing"].policy, Thompson)
    assert isinstance(found["Thompson, mixing"].mixing, InverseSqrt)
    assert [found[policy].mixing for policy in policies.POLICIES] == [None] * 3
