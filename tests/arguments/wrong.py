"""Values of a wrong kind, for every argument: it works, or the error has the argument's name."""

import re
import warnings

import numpy as np

import jaxbo

WRONG = {
    "None": None,
    "text": "a",
    "-1": -1,
    "0": 0,
    "2.5": 2.5,
    "nan": np.nan,
    "inf": np.inf,
    "a list": [],
    "a list of text": ["a"],
    "rows of other lengths": [[0.1, 0.2], [0.3]],
    "a dictionary": {},
    "an object": object(),
    "2^40": 2**40,
    "True": True,
    "an array": np.zeros((2, 3, 4)),
    "NaNs": np.full(2, np.nan),
    "a complex number": 1j,
    "a class": jaxbo.Cube,
    "a function": lambda *several: None,
}

#: A message may have these in the place of the argument's name.
SAID = {
    "lower": "bounds",
    "upper": "bounds",
    "mapping": "space",
    "charges": "text",
    "path": "checkpoint",
}


def cases(table):
    """Each argument of each entry with each of the values."""
    return [
        (name, argument, label)
        for name, (_, good) in table.items()
        for argument in good
        for label in WRONG
        # A record may be what a class makes of a round.
        if (argument, label) != ("record", "a class")
    ]


def works_or_says_why(table, case):
    name, argument, label = case
    make, good = table[name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            make(**{**good, argument: WRONG[label]})
    except (TypeError, ValueError) as error:
        text = str(error)
        assert re.search(rf"\b({argument}|{SAID.get(argument, argument)})\b", text), text
        assert len(text) < 600, text


def all_work_or_say_why(table, name):
    for case in cases({name: table[name]}):
        works_or_says_why(table, case)
