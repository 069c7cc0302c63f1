"""Tables of the experiments about failures, noise and plateaus."""

from collections.abc import Callable

from bench.tables.cells import Results, Rows, final, merged, percent

#: The values that a method is told of a failure.
WAYS = {
    "NaN": "told",
    "NaN, which is not remembered": "forgetful",
    "the worst value so far": "imputed",
    "the worst value of all": "penalty",
    "nothing fails: where it would is known": "informed",
}
#: Methods of a problem, by column.
FAILING = {
    f"{short}, {problem}": f"{problem}, {method}"
    for short, method in {
        "`BO`": "BO",
        "EI": "EGP, EI",
        "Thompson": "EGP, Thompson",
        "TS": "TS",
    }.items()
    for problem in ("ridge", "slope", "chance")
}
TOLD = "told of a failure by"


def failures(results: Results) -> Rows:
    """Regret by method and by the way in which a failure is told."""
    found = merged(results, "failures")

    def cell(name: str) -> str:
        return final(found, name) if name in found["methods"] else ""

    return _told(cell)


def failed(results: Results) -> Rows:
    """The share of evaluations that fail; older results have it in their claims only."""
    shares: dict[str, float] = {}
    for result in results.values():
        if result.get("experiment") == "failures":
            shares |= result.get("details", {}).get("failed after ten", {})
            for claim, check in result["checks"].items():
                method, share, _ = claim.partition(": at most 10% fail")
                if share:
                    shares.setdefault(f"{method}, told", check["figure"])

    def cell(name: str) -> str:
        return percent(shares[name]) if name in shares else ""

    return _told(cell)


def _told(cell: Callable[[str], str]) -> Rows:
    """The cells that a result has, by method and by the way in which a failure is told."""
    shown = {
        label: method
        for label, method in FAILING.items()
        if any(cell(f"{method}, {way}") for way in WAYS.values())
    }
    rows = [[told, *(cell(f"{m}, {way}") for m in shown.values())] for told, way in WAYS.items()]
    return [[TOLD, *shown], *(row for row in rows if any(row[1:]))]


def noise(results: Results) -> Rows:
    """Regret of the two points, by noise and method."""
    levels = {"as large as the signal": "even", "from none to twice as large": "uneven"}
    rows = [
        [
            label if method == "EGP, EI" else "",
            method,
            *(final(results["noise"], f"{level}, {method}, {p}") for p in ("expected", "observed")),
        ]
        for label, level in levels.items()
        for method in ("EGP, EI", "TS")
    ]
    return [["noise", "method", "best expected", "best observed"], *rows]


def plateaus(results: Results) -> Rows:
    """Evaluations until the hill is found, in 2, 4 and 8 dimensions."""
    shapes = {
        "a hill on a plateau, in 2, 4 and 8 dimensions": "hill",
        "five levels around it": "steps",
        "a second, lower hill of 5 %": "decoy",
        "noise on the plateau, a hundredth of the hill": "noise",
    }
    methods = {
        "random search": "random search",
        "TS": "TS",
        "EI": "EGP, EI",
        "UCB": "EGP, UCB",
        "Thompson": "EGP, Thompson",
        # Older results have its model and policy without `BO`'s turns and tops.
        "EI, warped ensemble": "warped ensemble, EI",
        "`BO`": "BO",
    }
    found = results["plateaus"]["methods"]
    methods = {label: m for label, m in methods.items() if f"hill, 2-D, {m}" in found}

    def cell(shape: str, method: str) -> str:
        ends = (found[f"{shape}, {dim}-D, {method}"]["final"] for dim in (2, 4, 8))
        return ", ".join(f"{end['mean']:.0f} ({end['se']:.0f})" for end in ends)

    rows = [[label, *(cell(shape, m) for m in methods.values())] for label, shape in shapes.items()]
    return [["", *methods], *rows]
