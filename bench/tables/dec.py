"""Tables of the experiments of DEC-HBO."""

from bench.tables.cells import Results, Rows, cells, digits, figure, final, percent, spread

PROBLEMS = ("Hartmann-6", "Shekel-4", "Michalewicz-10")
#: Rows of a table, by their names: methods, whose cells stand side by side.
DEC_SYNTHETIC = {
    "DEC-HBO, one variable each": ("DEC-HBO, one each",),
    "pairs; triples": ("DEC-HBO, pairs", "DEC-HBO, triples"),
    "exploring (beta = 6), one each": ("DEC-HBO, one each, exploring",),
    "exploring, pairs; triples": ("DEC-HBO, pairs, exploring", "DEC-HBO, triples, exploring"),
    "exploring, four variables a factor": ("DEC-HBO, fours, exploring",),
    "pairs, as in the paper (sum of the deviations)": ("DEC-HBO, pairs, as in the paper",),
    "pairs, values not warped; Thompson sampling": (
        "DEC-HBO, pairs, not warped",
        "DEC-HBO, pairs, Thompson",
    ),
    "random trees (RDUCB)": ("DEC-HBO, random trees",),
    "ADD-GP-UCB; ADD-MES-G; ADD-MES-R": ("ADD-GP-UCB", "ADD-MES-G", "ADD-MES-R"),
    "REMBO": ("REMBO",),
    "GP-UCB; exploring": ("GP-UCB", "GP-UCB, exploring"),
    "plain process, length scales with scaled priors, EI": ("plain GP, scaled priors, EI",),
    "BoTorch, LogEI, from the same points": ("BoTorch, LogEI",),
}


def dec_synthetic(results: Results) -> Rows:
    """Regret at the end on three functions; the paper's is in the margin of a claim."""
    found = {problem: results[f"dec-synthetic-{problem.lower()}"] for problem in PROBLEMS}
    papers = [
        next(check["margin"][1] for claim, check in one["checks"].items() if "Table 1" in claim)
        for one in found.values()
    ]
    return [
        ["", *PROBLEMS],
        ["the best of the paper's table", *(f"{paper:.2f}" for paper in papers)],
        *(
            [label, *(cells(found[problem], problem, label, methods) for problem in PROBLEMS)]
            for label, methods in DEC_SYNTHETIC.items()
        ),
    ]


def dec_learned(results: Results) -> Rows:
    """Regret at the end of learned structures and of all pairs, and seconds of a run."""
    result = results["dec-learned"]
    methods = {"learned structures": "DEC-HBO, learned", "all pairs": "DEC-HBO, pairs"}
    runs, spent = result["settings"]["runs"], result["seconds of parts"]

    def row(label: str, method: str) -> list[str]:
        names = [f"{problem}, {method}" for problem in PROBLEMS]
        times = [f"{digits(spent[name] / runs)} s" for name in names]
        return [label, *(f"{final(result, n)}; {t}" for n, t in zip(names, times, strict=True))]

    return [["regret; a run takes", *PROBLEMS], *(row(*item) for item in methods.items())]


def dec_structure(results: Results) -> Rows:
    """Regret at the end, and pairs that were found, by dimension."""
    dims = {f"{dim}-D": results[f"dec-structure-{dim}-d"] for dim in (20, 50, 100)}
    methods = {
        "the true graph": "DEC-HBO, true graph",
        "learned on the way": "DEC-HBO, learned",
        "learned, half of the evaluations at random": "DEC-HBO, learned, random first",
        "random trees": "DEC-HBO, random trees",
        "one variable each": "DEC-HBO, one each",
        "ADD-GP-UCB": "ADD-GP-UCB",
        "plain process, scaled priors, EI": "plain GP, scaled priors, EI",
        "random search": "random search",
    }
    learned = ("DEC-HBO, learned", "DEC-HBO, learned, random first", "at random points")

    def pairs(part: str) -> list[str]:
        return [
            "; ".join(percent(one["settings"][part][f"{dim}, {method}"][-1]) for method in learned)
            for dim, one in dims.items()
        ]

    return [
        ["", *(f"{dim}, {one['settings']['runs'][dim[:-2]]} runs" for dim, one in dims.items())],
        *(
            [label, *(final(one, f"{dim}, {method}") for dim, one in dims.items())]
            for label, method in methods.items()
        ),
        ["true pairs found: on the way; half at random; all at random", *pairs("found")],
        ["pairs found that are false", *pairs("false")],
    ]


def dec_chains(results: Results) -> Rows:
    """R-hat, and the pairs that both chains found."""
    runs = [one for one in results.values() if one.get("experiment") == "dec-chains"]
    rows = []
    # By the number of variables, pairs before triples.
    for one in sorted(runs, key=lambda one: _problem(next(iter(one["settings"]["R-hat"])))):
        settings = one["settings"]
        for name, hats in settings["R-hat"].items():
            evidence = "; ".join(f"{value:.0f}" for value in settings["log evidence"][name])
            found, false = (
                "; ".join(map(percent, settings[part][name])) for part in ("found", "false")
            )
            rows.append([name, ", ".join(map(figure, hats)), evidence, found, false])
    head = [
        "",
        "R-hat of each function",
        "log evidence",
        "true pairs found",
        "of pairs found, false",
    ]
    return [head, *rows] if rows else []


def _problem(name: str) -> tuple[bool, int]:
    return "triples" in name, int(name.split("-")[0])


def dec_times(results: Results) -> Rows:
    """Seconds of a run, with its share of compiling."""
    found = {problem: results[f"dec-synthetic-{problem.lower()}"] for problem in PROBLEMS}
    methods = {
        "single variables": "DEC-HBO, one each",
        "pairs": "DEC-HBO, pairs",
        "triples": "DEC-HBO, triples",
        "GP-UCB": "GP-UCB",
        "LogEI": "BoTorch, LogEI",
    }

    def cell(problem: str, method: str) -> str:
        one = found[problem]
        seconds = one["seconds of parts"].get(f"{problem}, {method}")
        return "" if seconds is None else f"{digits(seconds / one['settings']['runs'])} s"

    rows = [
        [label, *(cell(problem, method) for problem in PROBLEMS)]
        for label, method in methods.items()
    ]
    return [["", *PROBLEMS], *rows]


def dec_gp(results: Results) -> Rows:
    """Errors on the test rows and on the folds, at the end."""
    result = results["dec-gp"]
    folds = result["settings"]["RMSE on the folds"]
    rows = [[name, final(result, name), spread(*folds[name])] for name in result["methods"]]
    return [["", "on the test rows", "on the folds"], *rows]


def dec_cnn(results: Results) -> Rows:
    """Errors at the end."""
    result = results["dec-cnn"]
    validation = result["settings"]["validation errors"]
    rows = [[name, final(result, name), figure(validation[name])] for name in result["methods"]]
    return [["", "test error", "validation error"], *rows]
