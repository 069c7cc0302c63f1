"""Tables of the experiments of FTS."""

from collections.abc import Mapping
from typing import Any

from bench.fts.landmine import PUBLISHED
from bench.fts.rivals import FEATURES
from bench.tables.cells import Results, Rows, digits, figure, final, over_rounds, spread


def fts_landmine(results: Results) -> Rows:
    """The best area under the curve, beside the authors'."""

    def row(M: int) -> list[str]:
        kinds = ("FTS", "RGPE", "TAF")
        ours = (final(results["fts-landmine"], f"{k} M = {M} (predict_proba)") for k in kinds)
        theirs = (f"{PUBLISHED[k, M]:.3f}" for k in kinds)
        return [str(M), *(cell for pair in zip(ours, theirs, strict=True) for cell in pair)]

    alone = [
        "none, by TS",
        final(results["fts-landmine"], "TS (predict_proba)"),
        f"{PUBLISHED['TS', 0]:.3f}",
        *[""] * 4,
    ]
    sent = ("FTS sends M", "RGPE sends M + M²", "TAF sends M + M² + 1")
    return [
        ["M", *(cell for one in sent for cell in (one, "authors'"))],
        alone,
        *map(row, FEATURES),
    ]


#: Rounds after which FTS and TS are compared.
ROUNDS = (1, 2, 5, 10, 20, 30, 40, 50)


def landmine_rounds(results: Results) -> Rows:
    """The mean AUC of FTS, less that of TS, after some rounds."""
    methods = results["fts-landmine"]["methods"]
    scores = {"predict_proba": "the authors' scores", "decision_function": "without their noise"}

    def row(score: str, M: int) -> list[str]:
        ours, alone = (
            methods[f"{name} ({score})"]["curve"]["mean"] for name in (f"FTS M = {M}", "TS")
        )
        cells = (f"{ours[n - 1] - alone[n - 1]:+.4f}" for n in ROUNDS)
        return [f"M = {M}, {scores[score]}", *cells]

    rows = [row(score, M) for score in scores for M in FEATURES]
    return [["after so many rounds", *map(str, ROUNDS)], *rows]


def lengths(results: Results) -> Rows:
    """Errors early and at the end, and values at the maximum of a message and at a random point."""
    rows: Rows = []
    for result in results.values():
        if result.get("experiment") != "fts-lengths":
            continue
        peaks = result["details"]["at the maximum of a message"]
        early = result["details"]["mean of rounds 1 to 20"]
        for name in result["methods"]:
            pair = peaks.get(f"{name}, at the maximum of a message")
            values = ["", ""] if pair is None else [f"{value:.3f}" for value in pair]
            rows.append([name, figure(early[name]), final(result, name), *values])
    head = "rounds 1 to 20", "at the end", "at a message's maximum", "at a random point"
    return [["", *head], *rows] if rows else []


def people(results: Results) -> Rows:
    """Errors at the end, in percent."""
    found = {"movements": results["fts-har"], "eating": results["fts-eating"]}

    def cell(result: Mapping[str, Any], name: str) -> str:
        one = result["methods"][name]["final"]
        return spread(100 * one["mean"], 100 * one["se"])

    names = found["movements"]["methods"]
    rows = [[name, *(cell(result, name) for result in found.values())] for name in names]
    return [["error, %", *found], *rows]


def agents(results: Results) -> Rows:
    """Milliseconds of a query by the number of peers."""
    result = results["fts-agents"]
    peers = result["settings"]["peers"]

    def cell(kind: str, N: int) -> str:
        one = result["methods"][f"{kind}, N = {N}"]["final"]
        return spread(1e3 * one["mean"], 1e3 * one["se"])

    rows = [[kind, *(cell(kind, N) for N in peers)] for kind in ("FTS", "RGPE", "TAF")]
    return [["ms, by the number of peers", *map(str, peers)], *rows]


def growing(results: Results) -> Rows:
    """Errors at the end."""
    result = results["fts-growing"]
    tasks = {"movements, error": "har", "eating, error": "eating", "landmines, 1 - AUC": "landmine"}
    methods = {"alone": "TS", "a single message": "FTS", "peers go on": "FTS, peers go on"}
    rows = [
        [label, *(final(result, f"{task}: {method}") for method in methods.values())]
        for label, task in tasks.items()
    ]
    return [["", *methods], *rows]


def mixed(results: Results) -> Rows:
    """Mean regret over the rounds by the share of peers that are alike."""
    result = results["fts-mixed"]
    others, kinds = ("opposed", "unrelated"), ("uniform", "learned")
    rows = [
        [
            f"{share} % alike",
            *(
                over_rounds(result, f"{kind}, {share}% alike, others {other}")
                for other in others
                for kind in kinds
            ),
        ]
        for share in (0, 25, 50, 75, 100)
    ]
    head = [f"{kind}, others {other}" for other in others for kind in kinds]
    return [["", *head], ["TS", over_rounds(result, "TS"), "", "", ""], *rows]


def pooled(results: Results) -> Rows:
    """Mean regret over the rounds, and regret at the end."""
    result = results["fts-pooled"]
    rows = [[name, over_rounds(result, name), final(result, name)] for name in result["methods"]]
    return [["hyperparameters", "regret over all rounds", "at the end"], *rows]


def nystrom(results: Results) -> Rows:
    """Mean regret and the kernel's error, by dimension and kind of features."""
    settings = results["fts-nystrom"]["settings"]
    regret, error = settings["mean regret over all rounds"], settings["rms error of the kernel"]
    sizes = (10, 20, 40, 80)

    def row(D: int, kind: str) -> list[str]:
        names = [f"D = {D}, {kind}, M = {M}" for M in sizes]
        cells = (f"{digits(regret[name])}; {figure(error[name])}" for name in names)
        return [f"D = {D}, {kind}", *cells]

    rows = [
        line
        for D in (1, 2, 4)
        for line in (
            [f"D = {D}, alone (TS)", digits(regret[f"D = {D}, TS"]), "", "", ""],
            *(row(D, kind) for kind in ("cosine", "sine-cosine", "Nystrom")),
        )
    ]
    return [["", *(f"M = {M}" for M in sizes)], *rows]
