"""Tables of the experiments about learned priors."""

from collections.abc import Mapping
from typing import Any

from bench.tables.cells import Results, Rows, after, digits, merged, percent

BOUND = "pooled bound"
#: The methods whose best the default is compared to.
RIVALS = (
    "TS",
    "EI",
    "FTS",
    "FTS, own models",
    "FTS, ranked peers",
    "FTS, agreed models",
    "RGPE",
    "TAF",
)
#: Families whose functions have something in common.
COMMON = {
    "nine tenths in common": "alike",
    "half in common": "half",
    "alike, half of them upside down": "opposed",
}
ALL = COMMON | {"nothing in common": "unrelated"}


def prior_synthetic(results: Results) -> Rows:
    """Regret after some evaluations, by family and method."""
    methods = {name: name for name in RIVALS} | {
        "learned, one variance": "learned prior, one variance",
        "learned, rank 10": "learned prior, rank 10",
        "learned, any covariance (default)": "learned prior, full",
        BOUND: BOUND,
    }
    found = merged(results, "prior-synthetic")
    families = ALL | {"shifted": "shifted"}

    def cell(name: str) -> str:
        return after(found, name, (4, 5, 10, 20)) if name in found["methods"] else ""

    return [
        ["", *families],
        *(
            [label, *(cell(f"{family}, {one}") for family in families.values())]
            for label, one in methods.items()
        ),
    ]


def prior_bound(results: Results) -> Rows:
    """The gain over EI, as a share of the pooled bound's, where functions have something in common."""
    found, after_n = results["prior-synthetic"]["methods"], (5, 10, 20)

    def share(family: str, method: str, n: int) -> str:
        alone, ours, most = (
            found[f"{family}, {one}"]["curve"]["mean"][n - 1] for one in ("EI", method, BOUND)
        )
        return percent((alone - ours) / (alone - most))

    methods = {
        "learned, rank 10": "learned prior, rank 10",
        "learned, any covariance": "learned prior, full",
    }
    rows = [
        [f"{label}: {words}", *(share(family, method, n) for n in after_n)]
        for label, family in COMMON.items()
        for words, method in methods.items()
    ]
    return [["after so many evaluations", *map(str, after_n)], *rows]


def prior_least(results: Results) -> Rows:
    """Regret of the bound over that of the best rival of the claims, where functions have something in
    common.
    """
    found, after_n = results["prior-synthetic"]["methods"], (5, 10)

    def times(family: str, n: int) -> str:
        curves = {
            name: found[f"{family}, {name}"]["curve"]["mean"][n - 1] for name in (BOUND, *RIVALS)
        }
        bound = curves.pop(BOUND)
        return digits(bound / min(curves.values()))

    rows = [[label, *(times(family, n) for n in after_n)] for label, family in COMMON.items()]
    return [["after so many evaluations", *map(str, after_n)], *rows]


def prior_groups(results: Results) -> Rows:
    """Regret after some evaluations, by the kinds of agents and method."""
    families = {
        "alike, half of them upside down: two groups": "opposed",
        "three clusters: three groups": "clusters",
        "nothing in common: two groups": "unrelated",
    }
    methods = {
        "TS": "TS",
        "EI": "EI",
        "FTS": "FTS",
        "learned, one group (default)": "one group",
        "learned, groups": "groups",
    }
    result = results["prior-groups"]
    return [
        ["functions", *methods],
        *(
            [label, *(after(result, f"{name}, {one}", (4, 5, 7, 10)) for one in methods.values())]
            for label, name in families.items()
        ),
    ]


OWNERS = {
    "TS": "TS",
    "EI": "EI",
    "EI, fitted hyperparameters": "EI, fitted",
    "EI, warped ensemble": "EI, warped ensemble",
    "FTS": "FTS",
    "FTS, own models": "FTS, own models",
    "FTS, ranked peers": "FTS, ranked peers",
    "FTS, agreed models": "FTS, agreed models",
    "RGPE": "RGPE",
    "TAF": "TAF",
    "learned prior, one variance": "learned prior, one variance",
    "learned prior, rank 10": "learned prior, rank 10",
    "learned prior, any covariance": "learned prior, full",
}


def prior_tuning(results: Results) -> Rows:
    """Regret after some evaluations, by method and task."""
    tasks = ("digits", "landmine", "cancer")
    return _owners(results["prior-tuning"], {task: f"{task}-svm" for task in tasks})


def prior_learners(results: Results) -> Rows:
    """The same for other learners."""
    tasks = {"digits, network": "digits-network", "diabetes, boosting": "diabetes-boosting"}
    return _owners(results["prior-learners"], tasks)


def _owners(result: Mapping[str, Any], tasks: dict[str, str]) -> Rows:
    """Regret after 5, 10 and 20 evaluations, a column for each task."""
    return [
        ["", *tasks],
        *(
            [label, *(after(result, f"{task}, {method}", (5, 10, 20)) for task in tasks.values())]
            for label, method in OWNERS.items()
        ),
    ]


def prior_har(results: Results) -> Rows:
    """The same for activity recognition."""
    return _owners(results["prior-har"], {"after 5, 10, 20": "har-logistic"})


def prior_landmine(results: Results) -> Rows:
    """Regret after some evaluations, by method and score."""
    found, scores = (
        results["prior-landmine"],
        {
            "the authors' score": "predict_proba",
            "without its noise": "decision_function",
        },
    )
    methods = {
        "TS": "TS",
        "EI": "EI",
        "EI, fitted hyperparameters": "EI, fitted",
        "EI, warped ensemble": "EI, warped ensemble",
        "FTS": "FTS",
        "FTS, length scale 0.3": "FTS, longer length scale",
        "FTS, ranked peers": "FTS, ranked peers",
        "RGPE": "RGPE",
        "TAF": "TAF",
        "learned prior of finished fields, one variance": "learned prior, one variance",
        "learned prior of finished fields, any covariance": "learned prior, full",
        "learned prior, nobody has finished": "learned prior, full, together",
    }
    return [
        ["", *scores],
        *(
            [
                label,
                *(
                    after(found, f"{score}, {method}", (4, 5, 10, 20, 53))
                    for score in scores.values()
                ),
            ]
            for label, method in methods.items()
        ),
    ]


def prior_growing(results: Results) -> Rows:
    """Regret of a newcomer after the first and the fifth query, by how many have finished."""
    found = merged(results, "prior-growing")
    names = ALL | {"landmines": "landmine-svm"}
    methods = {
        "FTS": "FTS",
        "TAF": "TAF",
        "learned prior, one variance": "learned prior, one variance",
        "learned prior, rank 10": "learned prior, rank 10",
        "learned prior, any covariance": "learned prior, full",
    }
    sizes = (1, 3, 10, 19, 30, 100)

    def cell(name: str) -> str:
        return after(found, name, (1, 5)) if name in found["methods"] else ""

    rows = []
    for label, name in names.items():
        if f"{name}, EI" in found["methods"]:
            alone = after(found, f"{name}, EI", (1, 5))
            rows.append([f"{label}: EI, alone", alone, *[""] * (len(sizes) - 1)])
            rows += [
                [f"{label}: {words}", *(cell(f"{name}, {method}, n = {n}") for n in sizes)]
                for words, method in methods.items()
            ]
    return [["finished", *map(str, sizes)], *rows] if rows else []


def prior_steps(results: Results) -> Rows:
    """Regret of a newcomer after the first and the fifth query, by the steps that were taken before."""
    found = merged(results, "prior-growing")
    steps = {"1": ", 1 step", "3": ", 3 steps", "10": "", "30": ", 30 steps"}

    def row(label: str, family: str) -> list[str]:
        names = (f"{family}, learned prior, full, n = 30{words}" for words in steps.values())
        return [label, *(after(found, name, (1, 5)) for name in names)]

    rows = [row(*one) for one in ALL.items() if f"{one[1]}, EI" in found["methods"]]
    return [["steps", *steps], *rows] if rows else []


def prior_participation(results: Results) -> Rows:
    """Regret after some evaluations, by who sends how much."""
    found = results.get("prior-participation", {"methods": {}})
    names = {
        label: name
        for label, name in ALL.items()
        if f"{name}, one variance, all" in found["methods"]
    }
    sent = found["settings"]["numbers an agent and round"] if names else {}

    def row(method: str, numbers: float) -> list[str]:
        cells = (after(found, f"{name}, {method}", (4, 5, 10, 20)) for name in names.values())
        return [method, f"{numbers:.0f}", *cells]

    rows = [row(*one) for one in sent.items()]
    return [["form, who sends", "numbers an agent and round", *names], *rows] if rows else []


UNITS = {name: name for name in RIVALS} | {
    "learned prior, as if all had one unit": "learned prior, no own units",
    "learned prior, `own_units=True`": "learned prior, own units",
    "learned prior, all have one unit": "learned prior, one unit",
}


def prior_units(results: Results) -> Rows:
    """Regret after some evaluations, by family and by what is known of units."""
    found = merged(results, "prior-units")
    names = {label: name for label, name in ALL.items() if f"{name}, TS" in found["methods"]}

    def row(label: str, method: str) -> list[str]:
        return [
            label,
            *(after(found, f"{name}, {method}", (5, 10, 20)) for name in names.values()),
        ]

    return [["", *names], *(row(*one) for one in UNITS.items())] if names else []


def prior_policies(results: Results) -> Rows:
    """Regret after some evaluations, by family, policy and whether there is the safeguard."""
    methods = {
        "EI (default)": "EI",
        "UCB": "UCB",
        "Thompson": "Thompson",
        "EI, safeguard": "EI, mixing",
        "Thompson, safeguard": "Thompson, mixing",
    }
    found = merged(results, "prior-policies")

    def row(label: str, family: str) -> list[str]:
        return [label, *(after(found, f"{family}, {one}", (5, 10, 20)) for one in methods.values())]

    rows = [row(*one) for one in ALL.items() if f"{one[1]}, EI" in found["methods"]]
    return [["functions", *methods], *rows] if rows else []


def prior_private(results: Results) -> Rows:
    """Regret after some queries, by the number of agents and the privacy loss."""
    found = merged(results, "prior-private")
    names = (name.split(" agents, ", 1) for name in found["methods"])
    pairs = [(int(agents), method) for agents, method in names]
    sizes = sorted({agents for agents, _ in pairs})

    def cell(agents: int, method: str) -> str:
        name = f"{agents} agents, {method}"
        return after(found, name, (1, 3, 5)) if name in found["methods"] else ""

    rows = [
        [method, *(cell(agents, method) for agents in sizes)]
        for method in dict.fromkeys(method for _, method in pairs)
    ]
    return [["", *(f"{agents} agents" for agents in sizes)], *rows] if rows else []


def prior_secure(results: Results) -> Rows:
    """Regret by who draws the noise, with its interval, and the ratio to that of a trusted server."""
    result = results["prior-secure"]
    rows = {"each alone": "alone"}
    for epsilon in ("4", "1"):
        rows[f"ε = {epsilon}, a trusted server"] = f"ε = {epsilon}, server"
        for shares in ("50", "34"):
            row = f"ε = {epsilon}, secure sums, threshold {shares}"
            rows[row] = f"ε = {epsilon}, shares of {shares}"

    def times(name: str, n: int) -> str:
        check = result["checks"].get(f"{name}, after {n}: regret over that of the server's noise")
        if check is None:
            return ""
        low, high = check["interval"]
        return f"{check['figure']:.2f} ({low:.2f} to {high:.2f})"

    def cells(name: str) -> list[str]:
        found = result["methods"][f"50 agents, {name}"]["curve"]
        return [
            cell
            for n in (3, 5)
            for cell in (_between(found["mean"][n - 1], found["se"][n - 1]), times(name, n))
        ]

    head = [cell for n in (3, 5) for cell in (f"after {n}", "times the server's")]
    return [["noise of", *head], *([label, *cells(name)] for label, name in rows.items())]


def _between(mean: float, error: float) -> str:
    return f"{digits(mean)} ± {digits(1.97 * error)}"  # 1.97 by Student's distribution of 200 runs
