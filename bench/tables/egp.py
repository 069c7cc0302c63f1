"""Tables of the experiments of EGP-TS."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.tables.cells import (
    Results,
    Rows,
    at,
    cells,
    digits,
    figure,
    final,
    merged,
    percent,
    spread,
)
from jaxbo import metrics

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
#: Of a run of its own, beside methods that need no process, from the same points again.
RUN_AGAIN = {
    "`BO`": ("BO",),
    "EI of the mixture, run again": ("mixture EI, warped",),
    "TPE (Optuna), from the same points": ("TPE",),
    "CMA-ES (`cma`), from the same points": ("CMA-ES",),
}
#: Of a run of its own: methods that are fitted as often as in the paper.
AS_PRINTED = {
    "EGP-TS, four kernels, fitted as printed": ("EGP-TS, fitted as printed",),
    "GP-TS, a length scale for each coordinate, fitted as printed": (
        "SE ARD alone, fitted as printed",
    ),
}
PROBLEMS = ("Ackley-5d", "Zakharov-4d", "drop-wave", "eggholder")


def egp_synthetic(results: Results) -> Rows:
    """Regret at the end on four functions."""
    found = {problem: results[f"egp-synthetic-{problem.lower()}"] for problem in PROBLEMS}
    apart = {"egp-synthetic-peers": RUN_AGAIN, "egp-synthetic-printed": AS_PRINTED}
    return [
        ["", *PROBLEMS],
        *(
            [label, *(cells(found[problem], problem, label, methods) for problem in PROBLEMS)]
            for label, methods in EGP_SYNTHETIC.items()
        ),
        *(
            [label, *(cells(results[name], problem, label, methods) for problem in PROBLEMS)]
            for name, of in apart.items()
            for label, methods in of.items()
        ),
    ]


def readme(results: Results) -> Rows:
    """EGP-TS and other libraries' methods, at the end on four functions."""
    first = {problem: results[f"egp-synthetic-{problem.lower()}"] for problem in PROBLEMS}
    again = dict.fromkeys(PROBLEMS, results["egp-synthetic-peers"])
    shown = {
        "`BO`": (again, "BO"),
        "EGP-TS, on features": (first, "EGP-TS"),
        "BoTorch, LogEI": (first, "BoTorch, LogEI"),
        "TPE (Optuna)": (again, "TPE"),
        "CMA-ES (`cma`)": (again, "CMA-ES"),
    }
    return [
        ["", *PROBLEMS],
        *(
            [label, *(final(of[problem], f"{problem}, {method}") for problem in PROBLEMS)]
            for label, (of, method) in shown.items()
        ),
    ]


ROBOT = EGP_SYNTHETIC.copy()
del ROBOT["BoTorch, LogEI, from the same points"]


def egp_robot(results: Results) -> Rows:
    """Distance from the goal at the end."""
    dims = {"three numbers": "3-d", "four numbers": "4-d"}
    rows = [
        [label, *(cells(results[f"egp-robot-{d}"], d.upper(), label, m) for d in dims.values())]
        for label, m in ROBOT.items()
    ]
    return [["", *dims], *rows]


#: When workers are compared by time.
MOMENT = 12


def egp_parallel(results: Results) -> Rows:
    """Regret after all evaluations and at a time."""
    result = results["egp-parallel"]
    names = [name for name in result["methods"] if not name.endswith(", by time")]
    rows = [[name, final(result, name), at(result, f"{name}, by time", MOMENT)] for name in names]
    return [["workers", "after all evaluations", f"at time {MOMENT}"], *rows]


def egp_network(results: Results) -> Rows:
    """The best share of rows that are classified right, by method and data set."""
    result = merged(results, "egp-network")
    sets = tuple(results["egp-network"]["settings"]["runs"])
    methods = dict.fromkeys(name.split(", ", 1)[1] for name in result["methods"])
    rows = [[method, *(final(result, f"{its}, {method}") for its in sets)] for method in methods]
    return [["", *sets], *rows]


def egp_evidence(results: Results) -> Rows:
    """Variance as a share of the exact variance, and the distance of weights from exact weights."""
    result = results["egp-evidence"]
    observations = result["settings"]["observations"]

    def row(name: str, one: Mapping[str, Any]) -> list[str]:
        curve = one["curve"]["mean"]
        empty = len(observations) - len(curve)
        return [name, *map(figure, curve), *[""] * empty]

    rows = [row(name, one) for name, one in result["methods"].items()]
    return [["after so many observations", *map(str, observations)], *rows]


def cluster(results: Results) -> Rows:
    """How busy workers are, seconds, and regret, for workers asked anew as they end and in rounds."""
    result = results["cluster"]
    ways = tuple(result["methods"])
    shares = {
        "share of the time that workers are busy": "utilization",
        "the same, until the last start": "until the last start",
    }
    mean = metrics.mean_and_error
    busy = [
        [label, *(" ".join(_share(*mean(np.asarray(result["settings"][of][way])))) for way in ways)]
        for label, of in shares.items()
    ]
    seconds = [
        spread(*map(float, mean(np.asarray(result["settings"]["seconds"][w])))) for w in ways
    ]
    return [
        ["", *ways],
        *busy,
        ["seconds of all evaluations", *seconds],
        ["regret after as many evaluations", *(final(result, way) for way in ways)],
    ]


def _share(mean: Any, error: Any) -> tuple[str, str]:
    return percent(float(mean)), f"({digits(100 * float(error), 1)} %)"


#: The ensembles whose weights are shown, and which of the kernels alone they are made of.
WEIGHED = {
    "each kernel alone, on features": "GP-TS",
    "EGP-TS, on features": "EGP-TS",
    "each kernel alone, exact": "GP-TS, exact",
    "exact": "EGP-TS, exact",
    "exact, by Laplace": "EGP-TS, exact, Laplace",
    "exact, tempered": "EGP-TS, exact, tempered",
    "exact, equal weights": "EGP-TS, exact, equal",
    "on `Ensemble.warped`": "EGP-TS, warped",
}
KERNELS = ("SE", "SE ARD", "Matern 3/2", "Matern 5/2")


def egp_weights(results: Results) -> Rows:
    """The regret of ensembles and the weights of their kernels, beside the regret of these alone."""
    rows = [["", "regret", *KERNELS]]
    for result in results.values():
        if result.get("experiment") == "egp-weights":
            problem = next(iter(result["methods"])).partition(", ")[0]
            rows += [_weights(result, problem, *row) for row in WEIGHED.items()]
    return rows[1:] and rows


def _weights(result: Mapping[str, Any], problem: str, label: str, method: str) -> list[str]:
    name = f"{problem}, {method}"
    if method.startswith("GP-TS"):
        return [f"{problem}: {label}", "", *(final(result, f"{name}, {k}") for k in KERNELS)]
    weights = [f"{name}, weight of {k}" for k in KERNELS]
    shown = [final(result, one) if one in result["methods"] else "" for one in weights]
    return [f"{problem}: {label}", final(result, name), *shown]
