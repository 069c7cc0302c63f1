"""Tables of the experiments of CEPE."""

from typing import Any

from bench.tables.cells import Results, Rows, figure, final, spread

FUNCTIONS = ("Branin", "Sobester", "Sobester, standardized")
METHODS = {
    "CEPE": "CEPE",
    "CEPE, `N_T = 64`": "CEPE, N_T = 64",
    "CEPE, each for itself (`alpha = 1`)": "CEPE, alpha = 1",
    "CEPE, all alike (`alpha = 0`)": "CEPE, alpha = 0",
    **{
        name: name for rival in ("IGP-UCB", "EI", "PI") for name in (rival, f"{rival}, independent")
    },
}


def cepe(results: Results) -> Rows:
    """Regret at the end."""
    result = results["cepe"]
    rows = [
        [label, *(final(result, f"{function}, {method}") for function in FUNCTIONS)]
        for label, method in METHODS.items()
    ]
    return [["", "Branin", "Sobester", "Sobester, mean 0 and variance 1"], *rows]


def communication(results: Results) -> Rows:
    """Numbers sent, and regret over that of CEPE."""
    settings = results["cepe-communication"]["settings"]
    sent, interleaved = settings["numbers sent"], settings["regret over CEPE's"]
    first, fewer = settings["regret over that of CEPE that explores first"], settings["reduction"]

    def row(name: str) -> list[str]:
        times = fewer.get(name)
        shown = [f"{sent[name]:.0f}", f"{times:.3g}" if times else ""]
        return [name, *shown, figure(interleaved[name]), figure(first[name])]

    def of_many(name: str, cells: list[Any]) -> list[str]:
        numbers, times, ratio = (float(cell) for cell in cells)
        return [name, f"{numbers:.0f}", f"{times:.3g}", figure(ratio), ""]

    return [
        ["", "numbers sent", "times fewer", "regret over CEPE's", "over that of exploring first"],
        *map(row, sent),
        *(of_many(name, cells) for name, cells in settings["1000 agents"].items()),
    ]


def first(results: Results) -> Rows:
    """Regret at the end and numbers sent, by function."""
    runs = [one for one in results.values() if one.get("experiment") == "cepe-first"]
    regrets = {name: method for one in runs for name, method in one["methods"].items()}
    sent = {name: count for one in runs for name, count in one["settings"]["numbers sent"].items()}
    rows = [
        [name, spread(method["final"]["mean"], method["final"]["se"]), f"{sent[name]:.0f}"]
        for name, method in regrets.items()
    ]
    return [["", "regret", "numbers sent"], *rows] if rows else []


def rate(results: Results) -> Rows:
    """Powers of the theorem."""
    settings = results["cepe-rate"]["settings"]
    kernels = {"squared exponential": "50 agents", "Matern": "50 agents, Matern"}
    rows = [
        [kernel, figure(settings["2 / (3 - kappa)"][kernel]), figure(settings["slopes of N_t"][of])]
        for kernel, of in kernels.items()
    ]
    return [["kernel", "2 / (3 - κ)", "growth of N_t over the last three doublings"], *rows]
