"""Outcomes of an experiment's claims, as a page has them, made by `python -m bench report`.

A page holds

    <!-- claims: NAME -->
    these lines are made anew
    <!-- end -->

and NAME is an experiment. Claims that say the same of several things stand in a grid of `GRIDS`, each as
its figure and the sign of its outcome. All others are listed. So no claim is left out.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from bench.claims import SYMBOLS, Verdict
from bench.common.text import margin, number, span, wanting
from bench.tables.cells import Results, figure, markdown

#: A claim as it is in a file.
Claim = Mapping[str, Any]


class Grid(NamedTuple):
    """Claims side by side: `pattern` matches a whole claim, and its groups are the row and the column.

    `words` are put in the place of others in the names of rows and columns.
    """

    title: str
    pattern: str
    words: Mapping[str, str] = {}

    def place(self, claim: str) -> tuple[str, str] | None:
        """The row and the column of a claim, if it belongs here."""
        found = re.fullmatch(self.pattern, claim)
        if found is None:
            return None
        groups = found.groupdict()
        row, column = (self._named(groups.get(side) or "") for side in ("row", "column"))
        return row, column

    def _named(self, label: str) -> str:
        for word, other in self.words.items():
            label = label.replace(word, other)
        return label.replace("|", "\\|")


BEST_OF_FOUR = dict.fromkeys(
    ("GP-TS, SE ARD", "GP-TS, SE", "GP-TS, Matern 3/2", "GP-TS, Matern 5/2"),
    "the best kernel alone",
)
FAMILIES = {
    "alike": "nine tenths in common",
    "half": "half in common",
    "opposed": "alike, half of them upside down",
    "unrelated": "nothing in common",
    "clusters": "three clusters",
    "shifted": "shifted",
}
DIFFERENCE = "Difference of means, ours less the other's"
RATIO = "Ratio of means, ours to the other's"
LESS = r"(?P<row>.+ below .+), difference"
NO_WORSE = r"(?P<row>.+) by more than \d+ %, ratio"
#: M, and against whom, in the experiments on people.
PEOPLE = (Grid("Error of FTS beside another's", r"FTS, (?P<row>.*M = \d+): (?P<column>.+)"),)
#: Of landmine fields.
SCORES = {"predict_proba": "the authors' scores", "decision_function": "without their noise"}
OWNERS = (
    Grid(
        "Regret of the learned prior with any covariance, over that of the best other method",
        r"(?P<row>[\w-]+): after (?P<column>\d+), at most \S+ times the best regret of .+, ratio",
    ),
)

ENDS = (
    Grid(
        "Regret of the first, over that of the second",
        r"(?P<column>[^:]+): (?P<row>.+ no worse than .+) by more than \d+ %, ratio",
        BEST_OF_FOUR | {" no worse than ": " beside "},
    ),
    Grid(
        "Regret of the first, less that of the second",
        r"(?P<column>[^:]+): (?P<row>.+ below .+), difference",
    ),
)

#: The grids of each experiment, in the order in which they take their claims.
GRIDS: dict[str, tuple[Grid, ...]] = {
    "best": (
        Grid(
            "Regret of `BO`, over that of the method in the column",
            r"(?P<row>.+): less regret than (?P<column>.+), ratio",
            {"random": "random search"},
        ),
    ),
    "cepe": (
        Grid(
            "CEPE's regret, as a share of that of the method in the row",
            r"(?P<column>[^:]+: CEPE(, N_T = 64)?) below (?P<row>.+), share of its regret",
            {
                ": CEPE, N_T = 64": ", `N_T = 64`",
                ": CEPE": "",
                "alpha = 1": "CEPE, each for itself (`alpha = 1`)",
                "alpha = 0": "CEPE, all alike (`alpha = 0`)",
            },
        ),
    ),
    "dec-cnn": (
        Grid(
            "Test error of DEC-HBO, over that of the method in the column",
            r"DEC-HBO, (?P<row>\w+) no worse than (?P<column>.+) by more than \d+ %, ratio",
        ),
    ),
    "dec-gp": (
        Grid(
            "Test error of DEC-HBO",
            r"DEC-HBO, (?P<row>.+): test RMSE below \S+, the best of Table 2",
        ),
        Grid(
            "Test error of DEC-HBO, over that of the method in the column",
            r"DEC-HBO, (?P<row>.+) no worse than (?P<column>.+) by more than \d+ %, ratio",
        ),
    ),
    "dec-learned": (
        Grid(
            "Regret, to be below the best of the paper's table",
            r"(?P<column>\S+): (?P<row>learned structures) below \S+, the best of Table 1, regret",
        ),
        Grid(
            "Regret, over that with all pairs",
            r"(?P<column>\S+): (?P<row>learned structures) no worse than all pairs by .+, ratio",
        ),
    ),
    "dec-structure": (
        Grid(
            "Ratio of regrets, of the first to the second",
            r"(?P<column>\d+-D): (?P<row>.+ no worse than .+) by more than \d+ %, ratio",
            {" no worse than ": " beside ", "DEC-HBO, ": ""},
        ),
        Grid(
            "Share of the pairs that is found",
            r"(?P<column>\d+-D): (?P<row>.+): at least half of the pairs found, share",
            {"DEC-HBO, ": ""},
        ),
    ),
    "dec-synthetic": (
        Grid(
            "Regret, to be below the best of the paper's table",
            r"(?P<column>\S+): DEC-HBO, (?P<row>.+) below \S+, the best of Table 1, regret",
        ),
        Grid(
            "Regret, over that of BoTorch's LogEI",
            r"(?P<column>\S+): DEC-HBO, (?P<row>.+) no worse than BoTorch, LogEI by .+, ratio",
        ),
        Grid(
            "Regret with the deviation of f, over that with the sum of the deviations",
            r"(?P<column>\S+): DEC-HBO, (?P<row>.+) no worse than with the sum of the .+, ratio",
        ),
    ),
    "dp-controls": (
        Grid(
            "Noise over signal in round 1",
            r"(?P<column>\w+): (?P<row>.+): noise above the signal, ratio",
        ),
        Grid(
            "Mean error of rounds 1 to 20, ours less the other's",
            r"(?P<column>\w+): (?P<row>.+ below .+), rounds 1 to 20, difference",
        ),
        Grid(
            "Error at the end, ours less the other's",
            r"(?P<column>\w+): (?P<row>.+ below .+), the end, difference",
        ),
        Grid(
            "Error less that of noise alone",
            r"(?P<column>\w+): (?P<row>.+) no further from noise alone than \S+, .+, difference",
        ),
    ),
    "dp-har": (Grid(DIFFERENCE, LESS), Grid(RATIO, NO_WORSE, {" no worse than ": " beside "})),
    "dp-landmine": (
        Grid(DIFFERENCE, LESS),
        Grid(
            "1 - AUC with samples of a fixed size, over that with independent draws",
            r"(?P<row>.+), fixed size no worse than .+ by more than \d+ %, ratio",
        ),
        Grid(
            "Epsilon by Rényi, to be at most that by the paper's moments",
            r"(?P<row>.+): Rényi loss below that by moments",
        ),
    ),
    "egp-network": (
        Grid(
            "Share of errors of EGP-TS, less that of the method in the row",
            r"(?P<column>[^:]+): EGP-TS, 11 scales no worse than (?P<row>.+) by more than .+",
        ),
    ),
    "egp-robot": (
        Grid(
            "Distance of the first, less that of the second",
            r"(?P<column>\d-D): (?P<row>.+ no worse than .+) by more than .+, difference",
            BEST_OF_FOUR | {" no worse than ": " beside "},
        ),
    ),
    "egp-synthetic": ENDS,
    "egp-weights": (
        Grid(
            "Regret of the kernels alone by the weights of an ensemble, less their plain mean",
            r"(?P<column>[^:]+): kernels by the weights of (?P<row>.+) below all alike, difference",
        ),
        *ENDS,
    ),
    "failures": (
        Grid(
            "Share of evaluations that fail, after the first ten",
            r"(?P<column>ridge|slope), (?P<row>.+): at most \S+ fail after ten evaluations, share",
        ),
        Grid(
            "Regret, over that of a search that is told where evaluations succeed",
            r"(?P<column>ridge|slope), (?P<row>.+): mean regret at most .+ informed search, ratio",
        ),
        Grid(
            "Regret, over that of a search that forgets failures",
            r"(?P<column>chance), (?P<row>.+): mean regret at most .+ forgetful search, ratio",
        ),
    ),
    "fts-eating": PEOPLE,
    "fts-har": PEOPLE,
    "fts-growing": (
        Grid("Error or 1 - AUC of the first beside the second", r"(?P<row>\w+): (?P<column>.+)"),
    ),
    "fts-landmine": (
        Grid(
            "1 - AUC of FTS, over that of the method in the column",
            r"FTS (?P<row>M = \d+ \(\w+\)): 1 - AUC no worse than of (?P<column>\w+) by .+, ratio",
            SCORES,
        ),
        Grid(
            "AUC, less that of the authors' runs",
            r"(?P<column>\w+)( (?P<row>M = \d+))? \(\w+\): at most .+ below the authors' .+",
        ),
        Grid(
            "Numbers in a message, on either score",
            r"(?P<column>\w+) (?P<row>M = \d+) \(\w+\): floats in a message",
        ),
        Grid(
            "Seconds of a round, to be below those of the authors' runs",
            r"(?P<column>\w+)( (?P<row>M = \d+))? \(\w+\): a round takes less than .+",
        ),
    ),
    "fts-lengths": (
        Grid(
            "Value at the maximum of a message, less that at a random point",
            r"(?P<column>\w+): FTS, (?P<row>.+): value at the maximum of a message .+, difference",
        ),
        Grid(
            "Mean error of FTS in rounds 1 to 20, less that of TS",
            r"(?P<column>\w+): FTS, (?P<row>.+): below TS in rounds 1 to 20, .+",
        ),
        Grid(
            "The same, less that of FTS with length scale 0.01",
            r"(?P<column>\w+): FTS, (?P<row>.+): below the scale 0.01 in rounds 1 to 20, .+",
        ),
        Grid(
            "Error at the end, over that of TS",
            r"(?P<column>\w+): FTS, (?P<row>.+): at the end no worse than TS by .+, ratio",
        ),
    ),
    "fts-mixed": (
        Grid(
            "Regret with learned P_N, over that of the method in the column",
            r"learned, (?P<row>.+): no worse than (?P<column>TS|uniform).* by more than .+, ratio",
        ),
        Grid("Regret with learned P_N, less that of TS", r"learned, (?P<row>.+): below TS, .+"),
    ),
    "gpu": (
        Grid("Error beside the plain program", r"(?P<row>.+), error beside the plain program, .+"),
    ),
    "methods": (
        Grid(
            "Seconds of a first call, with a goal",
            r"(?P<row>.+): the (?P<column>first run|first drive) within .+",
        ),
        Grid(
            "Seconds of a call from the cache, with a goal",
            r"(?P<row>.+): the cached (?P<column>run|drive|query of a desk) within .+",
        ),
    ),
    "plateaus": (
        Grid(
            "Evaluations over those of random search, in 2, 4 and 8 dimensions",
            r"(?P<row>\w+), \d+-D, (?P<column>.+): at most \S+ times as late as at random, ratio",
        ),
    ),
    "prior-growing": (
        Grid(
            "Regret of the learned prior, over that of EI alone, after so many queries",
            r"(?P<row>[\w-]+, n = \d+): after (?P<column>\d+), at most \S+ times EI's regret, ratio",
            FAMILIES,
        ),
        Grid(
            "The same, over that of the better of FTS and TAF",
            r"(?P<row>[\w-]+, n = \d+): after (?P<column>\d+), no more regret than .+, ratio",
            FAMILIES,
        ),
        Grid(
            "The same with the most that have finished, over that with one",
            r"(?P<row>[\w-]+): after \d+, at most \S+ times the regret with .+, ratio",
            FAMILIES,
        ),
    ),
    "prior-groups": (
        Grid(
            "Regret with groups, over that of the best of TS, EI and FTS, after so many evaluations",
            r"(?P<row>[\w-]+): after (?P<column>\d+), at most \S+ .+ of TS, EI, FTS, ratio",
            FAMILIES,
        ),
        Grid(
            "The same, over that with one group",
            r"(?P<row>[\w-]+): after (?P<column>\d+), at most \S+ times the regret of one group, ratio",
            FAMILIES,
        ),
        Grid(
            "The same, over that of the better of TS and EI",
            r"(?P<row>[\w-]+): after (?P<column>\d+), at most \S+ .+ of TS, EI, ratio",
            FAMILIES,
        ),
    ),
    "prior-har": OWNERS,
    "prior-landmine": (
        Grid(
            "Regret with the prior of finished fields, over that of the best other method",
            r"(?P<row>\w+): after (?P<column>\d+), at most \S+ .+ of TS, EI, .+, FTS, .+, ratio",
            SCORES,
        ),
        Grid(
            "Regret where nobody has finished, over that of the best method alone",
            r"(?P<row>\w+), nobody has finished: after (?P<column>\d+), at most \S+ .+, ratio",
            SCORES,
        ),
    ),
    "prior-learners": OWNERS,
    "prior-participation": (
        Grid(
            "Regret where a tenth sends any covariance, over that where all send a simpler form",
            r"(?P<row>.+): after (?P<column>\d+), .+, no more regret, ratio",
            FAMILIES,
        ),
    ),
    "prior-policies": (
        Grid(
            "Regret of EI, over that of the better of UCB and Thompson, after so many evaluations",
            r"(?P<row>[\w-]+): after (?P<column>\d+), EI no worse than .+, ratio",
            FAMILIES,
        ),
        Grid(
            "Regret with the safeguard, over that of the same policy without, after so many evaluations",
            r"(?P<row>[\w-]+, \w+): after (?P<column>\d+), at most \S+ .+ without mixing, ratio",
            FAMILIES,
        ),
    ),
    "prior-private": (
        Grid(
            "Share that is kept of the gain of the learned prior, after so many queries",
            r"(?P<row>\d+ agents, .+), after (?P<column>\d+): .+ of the gain kept, learned",
        ),
        Grid(
            "Share that is kept of the gain without noise",
            r"(?P<row>\d+ agents, .+), after (?P<column>\d+): .+ of the gain kept, no noise",
        ),
    ),
    "prior-secure": (
        Grid(
            "Regret over that with noise of a trusted server, after so many queries",
            r"(?P<row>.+ shares of \d+), after (?P<column>\d+): regret over .+",
        ),
    ),
    "prior-synthetic": (
        Grid(
            "Regret of the default, over that of the best rival, after so many evaluations",
            r"(?P<row>[\w-]+): after (?P<column>\d+), at most \S+ .+ of TS, EI, FTS, .+, ratio",
            FAMILIES,
        ),
        Grid(
            "Regret of the default, over that of the better of TS and EI, after so many evaluations",
            r"(?P<row>[\w-]+): after (?P<column>\d+), at most \S+ .+ of TS, EI, ratio",
            FAMILIES,
        ),
        Grid(
            "Regret of the default, over that of the pooled bound, after so many evaluations",
            r"(?P<row>[\w-]+): after (?P<column>\d+), at most \S+ .+ of pooled bound, ratio",
            FAMILIES,
        ),
    ),
    "prior-tuning": OWNERS,
    "prior-units": (
        Grid(
            "Regret with own units, over that of the best rival, after so many evaluations",
            r"(?P<row>[\w-]+): after (?P<column>\d+), at most \S+ .+ of TS, EI, FTS, .+, ratio",
            FAMILIES,
        ),
        Grid(
            "The same, over that of the better of TS and EI",
            r"(?P<row>[\w-]+): after (?P<column>\d+), at most \S+ .+ of TS, EI, ratio",
            FAMILIES,
        ),
        Grid(
            "The same, over that as if all agents had one unit",
            r"(?P<row>[\w-]+): after (?P<column>\d+), at most \S+ .+ of .+, no own units, ratio",
            FAMILIES,
        ),
        Grid(
            "The same, over that where all agents have one unit",
            r"(?P<row>[\w-]+): after (?P<column>\d+), at most \S+ .+ of .+, one unit, ratio",
            FAMILIES,
        ),
    ),
    "scaling": (
        Grid(
            "Time of a round, over its floor",
            r"(?P<column>FTS|DP-FTS-DE), (?P<row>.+): at most \S+ times the floor",
        ),
    ),
    "speed": (
        Grid(
            "Relative error of the posterior, with a goal",
            r"posterior (?P<column>\w+, \w+ root), (?P<row>.+), <= \S+",
        ),
        Grid(
            "Maxima that are found, in percent",
            r"maximum of (?P<column>.+), (?P<row>D=\d+ l=\S+), >= \d+",
        ),
    ),
}


# ---------------------------------------------------------------- the block of a page


def block(results: Results, experiment: str, page: str) -> str:
    """Outcomes of an experiment, with links to its place on the page of all claims."""
    named = sorted(results, key=_by_number)
    found = {n: results[n] for n in named if results[n].get("experiment") == experiment}
    checks = {c: check for one in found.values() for c, check in one.get("checks", {}).items()}
    if not checks:
        return "*The experiment has not been run.*"
    links = ", ".join(f"[{name}]({page}#{name})" for name in found)
    parts = [f"{counted(checks)} Intervals: {links}."]
    for grid in GRIDS.get(experiment, ()):
        places = {claim: place for claim in checks if (place := grid.place(claim))}
        if places:
            parts.append(_grid(grid, {place: [] for place in places.values()}, places, checks))
        checks = {claim: check for claim, check in checks.items() if claim not in places}
    if checks:
        rows = [row(claim, check)[:5] for claim, check in checks.items()]
        parts.append(markdown([["claim", "margin", "figure", "95 % interval", ""], *rows]))
    return "\n\n".join(parts)


def _by_number(name: str) -> list[str]:
    """Names in the order of the numbers in them: 20-d before 100-d."""
    return [part.zfill(9) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def counted(checks: Mapping[str, Claim]) -> str:
    """How many claims have which outcome."""
    outcomes = [check["outcome"] for check in checks.values()]
    words = (f"{outcomes.count(of)} {sign} {of}" for of, sign in SYMBOLS.items())
    return f"Outcomes: {', '.join(words)}."


def row(claim: str, check: Claim) -> list[str]:
    """A claim in a list."""
    outcome = Verdict(check["outcome"])
    return [
        claim.replace("|", "\\|"),
        margin(*check["margin"]),
        number(check["figure"]),
        span(*check["interval"]) if check["interval"] else "",
        f"{SYMBOLS[outcome]} {wanting(check)}".strip() if check["interval"] else SYMBOLS[outcome],
        str(check["runs"] or ""),
        check["how"],
    ]


def _grid(
    grid: Grid,
    cells: dict[tuple[str, str], list[Claim]],
    places: Mapping[str, tuple[str, str]],
    checks: Mapping[str, Claim],
) -> str:
    """A margin is said once: of the grid, else of a column, else of a row, else of a cell."""
    for claim, place in places.items():
        cells[place].append(checks[claim])
    rows, columns = (list(dict.fromkeys(place[side] for place in cells)) for side in (0, 1))
    of_grid = _common(cells, lambda row, column: True)
    of_columns = {c: _common(cells, lambda _, its, c=c: its == c) for c in columns}
    of_rows = {r: _common(cells, lambda its, _, r=r: its == r) for r in rows}
    title, head, side, each = grid.title, columns, rows, False
    if of_grid:
        title = f"{title}, {of_grid}"
    elif all(of_columns.values()):
        head = [f"{column} ({of_columns[column]})".strip() for column in columns]
    elif all(of_rows.values()):
        side = [f"{row} ({of_rows[row]})" for row in rows]
    else:
        each = True
    shown = [
        [label, *(_cell(cells.get((row, column), []), each) for column in columns)]
        for label, row in zip(side, rows, strict=True)
    ]
    return f"{title}:\n\n{markdown([['', *head], *shown])}"


def _common(cells: Mapping[tuple[str, str], list[Claim]], among: Any) -> str:
    """The margin of all claims there, or nothing if they have several."""
    margins = {
        margin(*check["margin"]) for place, some in cells.items() if among(*place) for check in some
    }
    return margins.pop() if len(margins) == 1 else ""


def _cell(checks: list[Claim], margins: bool) -> str:
    return ", ".join(dict.fromkeys(_signs(checks, margins)))


def _signs(checks: list[Claim], margins: bool) -> Iterator[str]:
    for check in checks:
        least, most = check["margin"]
        asked = f" ({margin(least, most)})" if margins and least != most else ""
        yield f"{figure(check['figure'])} {SYMBOLS[Verdict(check['outcome'])]}{asked}"
