"""Tables of the pages, made from the results by `python -m bench report`.

A page holds

    <!-- table: NAME -->
    what is written here is made anew
    <!-- end -->

and NAME is one of `TABLES`. A mean has its standard error in brackets, of which two digits are shown.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

#: The contents of all results by name.
Results = Mapping[str, Mapping[str, Any]]
Rows = list[list[str]]


# ---------------------------------------------------------------- cells


def digits(value: float, figures: int = 2) -> str:
    """So many significant figures, and no exponent."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{figures - 1}e}")  # 0.996 has one figure more than 1.0
    return f"{rounded:.{max(figures - 1 - math.floor(math.log10(abs(rounded))), 0)}f}"


def spread(mean: float, error: float) -> str:
    """A mean to the second digit of its error, and that."""
    if not error:
        return digits(mean)
    shown = digits(error)
    return f"{mean:.{len(shown.partition('.')[2])}f} ({shown})"


def final(result: Mapping[str, Any], method: str) -> str:
    """A method's mean at the end, with its error."""
    one = result["methods"].get(method)
    return "not run" if one is None else spread(one["final"]["mean"], one["final"]["se"])


def after(result: Mapping[str, Any], method: str, rounds: Sequence[int]) -> str:
    """Means of a curve."""
    curve = result["methods"][method]["curve"]["mean"]
    return ", ".join(digits(curve[n - 1]) for n in rounds)


def percent(value: float) -> str:
    """A share."""
    return f"{100 * value:.0f} %"


def markdown(rows: Rows) -> str:
    """The first row is the head."""
    head, *rest = (re.sub(r"\|  (?=\|)", "| ", f"| {' | '.join(row)} |") for row in rows)
    return "\n".join([head, "|" + " --- |" * len(rows[0]), *rest])


# ---------------------------------------------------------------- tables


def best(results: Results) -> Rows:
    """Ratios of regrets, over problems, with Student's interval."""
    from bench.best import compare

    (name,) = (name for name in results if name.startswith("best-"))
    finals = {key: one["final"] for key, one in results[name]["methods"].items()}
    problems = sorted({key.rsplit(", ", 2)[0] for key in finals})
    peers = ("random", "CMA-ES", "TPE")

    def cell(peer: str, budget: int) -> str:
        logs = [
            [finals[f"{problem}, {one}, {budget}"]["mean"] for one in ("jaxbo", peer)]
            for problem in problems
        ]
        ours = compare.over(np.subtract(*np.transpose(logs)))
        return "{} ({} to {})".format(*map(digits, (ours.figure, *ours.interval)))

    rows = [[str(budget), *(cell(peer, budget) for peer in peers)] for budget in (20, 50)]
    return [["evaluations", "random search", "CMA-ES (`cma`)", "TPE (Optuna)"], *rows]


#: Rows of a table, by what they are called: methods, whose cells stand side by side.
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
    "learned structures": ("DEC-HBO, learned",),
    "random trees (RDUCB)": ("DEC-HBO, random trees",),
    "ADD-GP-UCB; ADD-MES-G; ADD-MES-R": ("ADD-GP-UCB", "ADD-MES-G", "ADD-MES-R"),
    "REMBO": ("REMBO",),
    "GP-UCB; exploring": ("GP-UCB", "GP-UCB, exploring"),
    "plain process, length scales with scaled priors, EI": ("plain GP, scaled priors, EI",),
    "BoTorch, LogEI, from the same points": ("BoTorch, LogEI",),
}
EGP_SYNTHETIC = {
    "EGP-TS, four kernels": ("EGP-TS",),
    "GP-TS, the best of the four alone": (
        "GP-TS, SE",
        "GP-TS, SE ARD",
        "GP-TS, Matern 3/2",
        "GP-TS, Matern 5/2",
    ),
    "BanditBO; EXP3BO": ("BanditBO", "EXP3BO"),
    "EGP-TS, eleven length scales": ("EGP-TS, 11 scales",),
    "BanditBO; EXP3BO with those": ("BanditBO, 11 scales", "EXP3BO, 11 scales"),
    "fully Bayesian GP-TS": ("fully Bayesian GP-TS",),
    "EGP-TS, exact": ("EGP-TS, exact",),
    "EGP-TS on `Ensemble.warped`": ("EGP-TS, warped",),
    "GP-EI": ("GP-EI",),
    "GP-UCB (beta = 4)": ("GP-UCB",),
    "EGP-EI": ("EGP-EI",),
    "EGP-EI on `Ensemble.warped`": ("EGP-EI, warped",),
    "EI of the mixture on `Ensemble.warped`": ("mixture EI, warped",),
    "BoTorch, LogEI, from the same points": ("BoTorch, LogEI",),
}


def cells(result: Mapping[str, Any], problem: str, label: str, methods: Sequence[str]) -> str:
    """The ends of methods on a problem, or the best of these ends."""
    names = [f"{problem}, {method}" for method in methods]
    if "the best of" in label:
        names = [min(names, key=lambda name: result["methods"][name]["final"]["mean"])]
    return "; ".join(final(result, name) for name in names)


def dec_synthetic(results: Results) -> Rows:
    """Regret at the end on three functions; the paper's is in the margin of a claim."""
    problems = ("Hartmann-6", "Shekel-4", "Michalewicz-10")
    found = {problem: results[f"dec-synthetic-{problem.lower()}"] for problem in problems}
    papers = [
        next(check["margin"][1] for claim, check in one["checks"].items() if "Table 1" in claim)
        for one in found.values()
    ]
    return [
        ["", *problems],
        ["the best of the paper's table", *(f"{paper:.2f}" for paper in papers)],
        *(
            [label, *(cells(found[problem], problem, label, methods) for problem in problems)]
            for label, methods in DEC_SYNTHETIC.items()
        ),
    ]


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


def egp_synthetic(results: Results) -> Rows:
    """Regret at the end on four functions."""
    problems = ("Ackley-5d", "Zakharov-4d", "drop-wave", "eggholder")
    found = {problem: results[f"egp-synthetic-{problem.lower()}"] for problem in problems}
    return [
        ["", *problems],
        *(
            [label, *(cells(found[problem], problem, label, methods) for problem in problems)]
            for label, methods in EGP_SYNTHETIC.items()
        ),
    ]


def egp_robot(results: Results) -> Rows:
    """Distance from the goal at the end."""
    columns = {
        "EGP-TS": ("EGP-TS",),
        "the best of the kernels alone": EGP_SYNTHETIC["GP-TS, the best of the four alone"],
        **{name: (name,) for name in ("GP-EI", "GP-UCB", "BanditBO", "EXP3BO", "EGP-EI")},
        "EGP-EI on `Ensemble.warped`": ("EGP-EI, warped",),
    }
    rows = [
        [words, *(cells(results[f"egp-robot-{dim}"], dim.upper(), *one) for one in columns.items())]
        for words, dim in (("three numbers", "3-d"), ("four numbers", "4-d"))
    ]
    return [["", *columns], *rows]


def fts_landmine(results: Results) -> Rows:
    """The best area under the curve, beside the authors'."""
    from bench.fts.landmine import PUBLISHED
    from bench.fts.rivals import FEATURES

    def row(M: int) -> list[str]:
        kinds = ("FTS", "RGPE", "TAF")
        ours = (final(results["fts-landmine"], f"{k} M = {M} (predict_proba)") for k in kinds)
        theirs = (f"{PUBLISHED[k, M]:.3f}" for k in kinds)
        return [str(M), *(cell for pair in zip(ours, theirs, strict=True) for cell in pair)]

    sent = ("FTS sends M", "RGPE sends M + M²", "TAF sends M + M² + 1")
    return [["M", *(cell for one in sent for cell in (one, "authors'"))], *map(row, FEATURES)]


def prior_synthetic(results: Results) -> Rows:
    """Regret after some evaluations, by family and method."""
    families = {
        "nine tenths in common": "alike",
        "half in common": "half",
        "alike, half of them upside down": "opposed",
        "nothing in common": "unrelated",
    }
    methods = {
        "TS": "TS",
        "EI": "EI",
        "FTS": "FTS",
        "learned, rank 10": "learned prior, rank 10",
        "learned, any covariance (default)": "learned prior, full",
    }
    result = results["prior-synthetic"]
    return [
        ["functions", *methods],
        *(
            [
                label,
                *(after(result, f"{family}, {one}", (4, 5, 10, 20)) for one in methods.values()),
            ]
            for label, family in families.items()
        ),
    ]


OWNERS = {
    "TS": "TS",
    "EI": "EI",
    "EI, fitted hyperparameters": "EI, fitted",
    "EI, warped ensemble": "EI, warped ensemble",
    "FTS": "FTS",
    "RGPE": "RGPE",
    "TAF": "TAF",
    "learned prior, one variance": "learned prior, one variance",
    "learned prior, rank 10": "learned prior, rank 10",
    "learned prior, any covariance": "learned prior, full",
}


def prior_tuning(results: Results) -> Rows:
    """Regret after some evaluations, by method and task."""
    tasks = ("digits", "landmine", "cancer")
    result = results["prior-tuning"]
    return [
        ["", *tasks],
        *(
            [label, *(after(result, f"{task}-svm, {method}", (5, 10, 20)) for task in tasks)]
            for label, method in OWNERS.items()
        ),
    ]


def prior_har(results: Results) -> Rows:
    """Regret after some evaluations, by method, for activity recognition."""
    result = results["prior-har"]
    rows = [
        [label, after(result, f"har-logistic, {method}", (5, 10, 20))]
        for label, method in OWNERS.items()
    ]
    return [["", "after 5, 10, 20"], *rows]


def failures(results: Results) -> Rows:
    """Regret by method and by what is told of a failure."""
    ways = {
        "NaN": "told",
        "NaN, which is not remembered": "forgetful",
        "the worst value so far": "imputed",
        "the worst value of all": "penalty",
    }
    methods = {"EI": "EGP, EI", "Thompson": "EGP, Thompson", "TS": "TS"}
    columns = {
        f"{short}, {problem}": f"{problem}, {method}"
        for short, method in methods.items()
        for problem in ("ridge", "slope")
    }
    rows = [
        [label, *(final(results["failures"], f"{name}, {way}") for name in columns.values())]
        for label, way in ways.items()
    ]
    return [["told of a failure by", *columns], *rows]


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
        "EI, warped ensemble": "warped ensemble, EI",
    }

    def cell(shape: str, method: str) -> str:
        found = results["plateaus"]["methods"]
        means = (found[f"{shape}, {dim}-D, {method}"]["final"]["mean"] for dim in (2, 4, 8))
        return ", ".join(f"{mean:.0f}" for mean in means)

    rows = [[label, *(cell(shape, m) for m in methods.values())] for label, shape in shapes.items()]
    return [["", *methods], *rows]


def round_parts(results: Results) -> Rows:
    """Microseconds an agent of each part of a round, and its floor."""
    labels = {
        "message": "a draw from the posterior",
        "candidates": "the best of 1000 candidates, of each slab",
        "search": "Newton's method from there",
        "learn": "one observation more",
    }
    kinds = {"bytes or products": "work", "random numbers": "random", "cosines": "cosines"}
    parts = results["round-parts"]["settings"]["parts"]

    def row(label: str, part: Mapping[str, float]) -> list[str]:
        least = (f"{part[kind]:.2f}" if part[kind] else "" for kind in kinds.values())
        return [label, f"{part['took']:.2f}", *least, f"{part['took'] / part['floor']:.1f}"]

    rows = [row(label, parts[part]) for part, label in labels.items()]
    return [["", "takes", *kinds, "times the floor"], *rows]


def gpu(results: Results) -> Rows:
    """Times on a GPU by the plain programs and by the kernels."""
    figures = results["gpu"]["settings"]["figures"]
    # The first of a name is beside its floor.
    found = {figure["name"]: figure["value"] for figure in reversed(figures)}
    slab, matrix, product, draw = (
        "the best of every slab",
        "10 observations, the root a matrix",
        "10 observations, the root a product",
        "a draw, the root a product",
    )
    whole = "DP-FTS-DE, 1000000 agents, 60 rounds, in chunks of 100000"
    tasks = {
        f"{slab}, 100 000 agents": (f"{slab}: 100000 agents", "kernel", 1.0, "ms"),
        f"ten{matrix[2:]}, 100 000 agents": (f"{matrix}: 100000 agents", "kernel", 1.0, "ms"),
        f"ten{product[2:]}, 100 000 agents": (f"{product}: 100000 agents", "kernel", 1.0, "ms"),
        f"{draw}, 100 000 agents": (f"{draw}: 100000 agents", "kernel", 1.0, "ms"),
        "an FTS round of 1000 agents": ("FTS, 1000 agents, 20 rounds", "kernels", 1.0, "ms"),
        "an FTS round of 100 000 agents": ("FTS, 100000 agents, 20 rounds", "kernels", 100.0, "ms"),
        "a DP-FTS-DE round of 100 000 agents": (
            "DP-FTS-DE, 100000 agents, 20 rounds",
            "kernels",
            100.0,
            "ms",
        ),
        "an FTS round of a million agents": (
            "FTS, 1000000 agents, 20 rounds",
            "kernels",
            1000.0,
            "ms",
        ),
        "60 rounds of DP-FTS-DE, a million agents in chunks of 100 000": (
            whole,
            "in all",
            1.0,
            "s",
        ),
        "compiling these 60 rounds": (whole, "compilation", 1.0, "s"),
    }

    def row(label: str, name: str, kind: str, times: float, unit: str) -> list[str]:
        names = (f"{name}, plain", f"{name}, {kind}")
        if unit == "s":
            names = (f"{name}, plain: {kind}", f"{name}, kernels: {kind}")
        plain, ours = (found.get(one) for one in names)
        shown = [f"{digits(times * one, 3)} {unit}" if one else "" for one in (plain, ours)]
        return [label, *shown, f"{plain / ours:.1f}" if plain and ours else ""]

    ensembles = 100 * found["11 kernels, 100 optimizations: an iteration"] / 1000
    sums = found["max-sum, 1811 pairs of 1811 variables on 32 points: 30 iterations"]
    return [
        ["on one H100", "plain", "kernels", "times as fast"],
        *(row(label, *task) for label, task in tasks.items()),
        ["100 ensembles of 11 kernels: an iteration of all", f"{digits(ensembles)} ms", "", ""],
        ["30 iterations of max-sum, 1811 pairs on 32 points", f"{digits(sums)} ms", "", ""],
    ]


def saving(results: Results) -> Rows:
    """Seconds of a run with a file and without, and the file."""
    rows = [["agents", "run", "with a checkpoint", "read again", "file"]]
    for case in results["saving"]["settings"]["cases"]:
        seconds = [f"{digits(case[name], 3)} s" for name in ("bare", "kept", "again")]
        rows.append(
            [f"{case['agents']:,}".replace(",", " "), *seconds, f"{case['size'] / 1e6:.0f} MB"]
        )
    return rows


TABLES: dict[str, Callable[[Results], Rows]] = {
    "best": best,
    "dec-structure": dec_structure,
    "dec-synthetic": dec_synthetic,
    "egp-robot": egp_robot,
    "egp-synthetic": egp_synthetic,
    "failures": failures,
    "fts-landmine": fts_landmine,
    "gpu": gpu,
    "noise": noise,
    "plateaus": plateaus,
    "prior-har": prior_har,
    "prior-synthetic": prior_synthetic,
    "prior-tuning": prior_tuning,
    "round-parts": round_parts,
    "saving": saving,
}
