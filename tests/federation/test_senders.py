"""Agents' numbers, and the senders who have them."""

import itertools

import pytest

from jaxbo.federation import RefusedError
from jaxbo.federation._senders import after, check

KNOWN = ["a", "b", ""]


def refused(agent, sender, known=KNOWN, heard=()):
    try:
        check(agent, sender, known, dict(heard))
    except RefusedError as error:
        return str(error)
    return None


def test_the_first_sender_of_a_number_has_it_from_then_on():
    first = after([], {1: "a"}, 3)
    assert first == ["", "a", ""]
    assert after(first, {1: "b", 2: "c"}, 3) == ["", "a", "c"]
    assert after(first, {}, 3) == first


def test_a_sender_who_has_a_number_cannot_take_anothers():
    assert refused(0, "a") is None
    with pytest.raises(RefusedError, match=r"b is agent 1, and a is agent 0\. .* register it anew"):
        check(0, "b", KNOWN, {})


def test_a_sender_without_a_number_can_answer_for_an_absent_one_and_does_not_keep_the_number():
    assert refused(0, "c") is None
    assert after(KNOWN, {0: "c"}, 3) == KNOWN


def test_a_sender_can_change_to_a_number_that_nobody_has():
    assert refused(2, "a") is None
    moved = after(KNOWN, {2: "a"}, 3)
    assert moved == ["", "b", "a"]
    assert after(moved, {0: "c"}, 3) == ["c", "b", "a"]


def test_a_sender_has_a_single_number_in_a_round():
    assert refused(1, "c", heard={1: "c"}) is None
    with pytest.raises(RefusedError, match="c has answered as agent 2 in this round"):
        check(1, "c", [], {2: "c"})


def test_whoever_is_heard_in_any_order_no_sender_has_two_numbers():
    """All rounds that two rounds can be followed by, for three agents and four senders."""
    senders = ("a", "b", "c", "d")
    for known in itertools.product(("", *senders[:3]), repeat=3):
        if len({*known} - {""}) < 3 - known.count(""):
            continue
        for order in itertools.permutations(senders, 3):
            heard = {}
            for agent, sender in enumerate(order):
                if refused(agent, sender, known, heard) is None:
                    heard[agent] = sender
            found = after(known, heard, 3)
            named = [name for name in found if name]
            assert len(named) == len(set(named))
            # Who had a number and did not answer keeps it, and so does who was heard with it.
            for agent, name in enumerate(known):
                if name and (name not in heard.values() or heard.get(agent) == name):
                    assert found[agent] == name
