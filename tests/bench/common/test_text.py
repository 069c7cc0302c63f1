"""Claims in words."""

import pytest

from bench.common import text


@pytest.mark.parametrize(
    ("ends", "said"),
    [((None, 1.5), "at most 1.5"), ((0.9, None), "at least 0.9"), ((-1, 1.0), "from -1 to 1")],
)
def test_a_margin_is_said_in_words(ends, said):
    assert text.margin(*ends) == said


def test_what_an_undecided_claim_wants_is_said():
    check = {"outcome": "undecided", "interval": [0, 2], "needed": 40, "how": "paired"}
    assert text.wanting(check) == "40 runs"
    assert text.wanting(check | {"needed": "hopeless"}) == "no number of runs"
    assert text.wanting(check | {"interval": None, "how": "one run"}) == "one run"
    assert text.wanting(check | {"outcome": "holds"}) == ""
    assert text.span(None, 1.0) == "-∞ to 1"
