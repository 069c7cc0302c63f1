"""Tables of speed and accuracy, and the devices that they were measured on."""

from collections.abc import Mapping
from typing import Any

from bench.tables.cells import Results, Rows, digits, figure

Figures = Mapping[str, list[Mapping[str, Any]]]

#: Units as they are shown.
UNITS = {
    "us an agent and round": "µs an agent",
    "us": "µs",
    "power": "",
    "relative error": "",
    "absolute error": "",
}
#: Rows of a table, by their names: the beginning of a figure's name in `speed`.
ROUNDS = {
    "FTS, 29 agents": "FTS, 29 agents: beside",
    "FTS, 1000 agents": "FTS, 1000 agents: beside",
    "FTS, 10 000 agents": "FTS, 10000 agents: beside",
    "FTS, 1000 agents, without a capacity": "FTS, 1000 agents, any number of rounds: beside",
    "FTS, 29 agents, own hyperparameters refitted every 5 rounds": (
        "FTS, 29 agents, own hyperparameters refitted every 5: beside"
    ),
    "one such refit, on 30 points": "a refit on 30",
    "DP-FTS-DE, 200 agents (M = 50, P = 4, 40 rounds)": "DP-FTS-DE, 200 agents, M = 50, P = 4",
    "the same, in rounds of FTS": "DP-FTS-DE, 200 agents, M = 50, P = 4: time",
    "100 seeds of 10 settings of z and q, in one program": (
        "100 seeds x 10 settings of it in one program"
    ),
    "the private sum of 200 000 messages of 100 numbers": "a release of 200000",
}
ENSEMBLES = {
    **{
        f"an iteration, {number} at a time": f"11 kernels, {number} optimizations: an iteration"
        for number in (1, 100, 10000)
    },
    **{
        f"one observation and the weights alone, {number} at a time": (
            f"11 kernels, {number} optimizations: one observation and the weights"
        )
        for number in (1, 100, 10000)
    },
    **{
        f"a refit of all kernels, whose length scales stay, {number} at a time": (
            f"11 kernels, {number} optimizations: a refit of all"
        )
        for number in (1, 100)
    },
    **{
        f"a refit of `Ensemble.warped`, {number} at a time": (
            f"Ensemble.warped, {number} optimizations: a refit of all"
        )
        for number in (1, 100)
    },
}
GRAPHS = ("300 pairs of 100 variables on 50", "100 triples of 60 variables on 30")
MAX_SUM = {
    **{
        f"{graph} points: {words}": f"max-sum, {graph} points: {part}"
        for graph in (*GRAPHS, "1811 pairs of 1811 variables on 32")
        for words, part in (
            ("30 iterations", "30 iterations"),
            ("an iteration over reading its tables", "an iteration over its floor"),
        )
    },
    "the maximum on a chain of 1811 variables on 32 points, by two sweeps": "a chain of 1811",
    **{
        f"20 loopy graphs of {graph}: {words}": f"max-sum on 20 loopy graphs of {graph}: {part}"
        for graph in ("30 pairs", "15 triples")
        for words, part in (
            ("median gap to toulbar2", "median gap"),
            ("largest gap", "largest gap"),
            ("median of the bound on the gap", "median gap that is claimed"),
        )
    },
}
DEC_HBO = {
    "1811 dimensions, pairs, 150 observations": "1811 dimensions, factors of 2, 150 observations",
    **{
        f"of it the {part}": f"1811 dimensions, factors of 2, 150 observations: {part}"
        for part in ("query", "observation", "fit")
    },
    "461 dimensions": "461 dimensions, factors of 2, 150 observations: an iteration",
    "101 dimensions": "101 dimensions, factors of 2, 150 observations: an iteration",
    "1811 dimensions, single variables": "1811 dimensions, factors of 1",
    "1811 dimensions, triples": "1811 dimensions, factors of 3",
    "1811 dimensions, pairs, 80 observations": "1811 dimensions, factors of 2, 80 observations",
    "1811 dimensions, pairs, 40 observations": "1811 dimensions, factors of 2, 40 observations",
}
SKETCHES = {
    "CEPE, 50 agents, 900 points, 2000 rounds": "CEPE, 50 agents, 900 points, 2000 rounds",
    "CEPE, 1000 agents": "CEPE, 1000 agents",
    "memory beside the trace, of 8000 rounds over that of 2000": "CEPE, memory",
    "a sketch of 10 000 observations, 128 inducing points": (
        "sketch of 10000 observations, 128 inducing points"
    ),
    "its largest error of the mean": (
        "sketch of 10000 observations, 128 inducing points: largest error of the mean"
    ),
    "its median relative error of the variance": (
        "sketch of 10000 observations, 128 inducing points: median"
    ),
    "sketches of 16 sub-regions of 128 points, 4000 observations": (
        "sketch of 4000 observations, 16 sub-regions of 128 inducing points"
    ),
    "their root mean square error of the mean": (
        "sketch of 4000 observations, 16 sub-regions of 128 inducing points: root"
    ),
    "that of a single sketch of all": "one of 128 inducing points: root",
}
REST = {
    "compiling a whole FTS run, the objective included": "FTS, 29 agents: compilation",
    "compiling it with refits": (
        "FTS, 29 agents, own hyperparameters refitted every 5: compilation"
    ),
    "arrays of 10 000 agents": "FTS, 10000 agents: arrays",
    "their process, beyond Python and JAX": "FTS, 10000 agents: peak",
    "relative error of the variance, 60 points, noise 1e-6, 100 features": (
        "posterior variance, product root, l=0.2 noise=1e-06"
    ),
    "cosines in turns": "cosine",
    "their error up to 1000 turns": "cosine, up to",
}


def rounds(results: Results) -> Rows:
    """Rounds of federations."""
    return _rows(ROUNDS, _figures(results, "speed"))


def ensembles(results: Results) -> Rows:
    """Iterations and refits of an ensemble."""
    return _rows(ENSEMBLES, _figures(results, "speed"))


def max_sum(results: Results) -> Rows:
    """Maxima of sums of tables."""
    return _rows(MAX_SUM, _figures(results, "speed-max-sum"))


def dec_hbo(results: Results) -> Rows:
    """An iteration in many dimensions, and how it grows."""
    found = _figures(results, "speed-dec-hbo")
    powers = {"power of the dimensions": "exponent of d", "of the observations": "exponent of o"}
    return [
        *_rows({label: f"DEC-HBO, {name}" for label, name in DEC_HBO.items()}, found),
        *_rows({label: f"DEC-HBO: {name}" for label, name in powers.items()}, found)[1:],
    ]


def sketches(results: Results) -> Rows:
    """CEPE and its sketches."""
    return _rows(SKETCHES, _figures(results, "speed"))


def rest(results: Results) -> Rows:
    """Compiling, memory and accuracy."""
    return _rows(REST, _figures(results, "speed"))


def readme(results: Results) -> Rows:
    """The few figures of the first page."""
    labels = {
        "a round of FTS, 1000 agents": "FTS, 1000 agents: beside",
        "an iteration of EGP-TS, 11 kernels": "11 kernels, 1 optimizations: an iteration",
        "a run of CEPE, 50 agents, 900 points, 2000 rounds": "CEPE, 50 agents",
        "compiling a whole run of FTS": "FTS, 29 agents: compilation",
        "compiling it with refits": REST["compiling it with refits"],
    }
    return _rows(labels, _figures(results, "speed"))


def _figures(results: Results, name: str) -> Figures:
    """All figures of a result by name: twice, if a figure is beside two others."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for one in results[name]["settings"]["figures"]:
        found.setdefault(one["name"], []).append(one)
    return found


def _rows(labels: Mapping[str, str], found: Figures) -> Rows:
    """A figure, and how many times better it is than the program that ran beside it."""

    def row(label: str, begin: str) -> list[str]:
        some = found.get(begin) or next(
            these for name, these in found.items() if name.startswith(begin)
        )
        beside = [f"{figure(one['ratio'])} × {one['beside']}" for one in some if one["ratio"]]
        unit = UNITS.get(some[0]["unit"], some[0]["unit"])
        return [label, f"{figure(some[0]['value'])} {unit}".strip(), "; ".join(beside)]

    rows = [row(label, begin) for label, begin in labels.items()]
    return [["", "measured", "times better than"], *rows]


def scaling(results: Results) -> Rows:
    """A round by agents, devices, features and dimensions."""
    cases = results["scaling"]["settings"]["cases"]

    def row(case: Mapping[str, Any]) -> list[str]:
        chunk = f", in chunks of {case['chunk']}" if case["chunk"] else ""
        each = 1e6 * case["seconds"] / case["rounds"] / case["agents"]
        return [
            f"{case['kind']}, {case['agents']} agents{chunk}",
            *(str(case[key]) for key in ("devices", "features", "dim")),
            f"{digits(each)} µs",
            f"{case['seconds'] / case['floor']:.1f}",
            f"{case['memory'] / 1e9:.3f} GB",
            f"{case['state'] / 1e9:.3f} GB",
        ]

    head = ["", "devices", "M", "D", "an agent's round", "times the floor", "memory", "state"]
    return [head, *map(row, cases)]


def methods(results: Results) -> Rows:
    """The first calls of each method, with a cache and without, and the bytes of an agent.

    Older results have no first `drive` and no first `Desk` from the cache: these cells are empty.
    """
    costs = results["methods"]["settings"]["costs"]
    calls = ("first", "cached", "drive", "cached drive", "desk", "cached desk")

    def row(name: str, cost: Mapping[str, Any]) -> list[str]:
        times = (cost.get(call) for call in calls)
        shown = ("" if time is None else f"{time:.1f} s" for time in times)
        return [name, *shown, *(f"{cost[key] / 1e3:.0f} kB" for key in ("state", "peak"))]

    named = (name for call in ("run", "drive", "Desk") for name in (f"first `{call}`", "cached"))
    return [["", *named, "state", "at most"], *(row(name, cost) for name, cost in costs.items())]


def methods_compiling(results: Results) -> Rows:
    """Seconds of all threads and memory of each method's first calls; nothing if a result is older."""
    costs = results["methods"]["settings"]["costs"]
    calls = {"run": "first", "drive": "drive", "Desk": "desk"}
    if any("processor" not in cost for cost in costs.values()):
        return []

    def row(name: str, cost: Mapping[str, Any]) -> list[str]:
        seconds, held, grown = (cost[key] for key in ("processor", "memory", "growth"))
        made = [call if cost[call] is not None else None for call in calls.values()]
        times = (call and f"{seconds[call]:.1f} s" for call in made)
        memory = (call and f"{grown[call]:.0f} of {held[call]:.0f} MB" for call in made)
        return [name, *(cell or "" for cell in (*times, *memory))]

    first, *rest = (f"`{call}`" for call in calls)
    head = ["", f"all threads: {first}", *rest, f"memory: {first}", *rest]
    return [head, *(row(name, cost) for name, cost in costs.items())]


def programs(results: Results) -> Rows:
    """The sizes of the program of each method's `run`."""
    sizes = {
        "lines of StableHLO": "lines",
        "instructions": "instructions",
        "kernels": "kernels",
        "decompositions": "decompositions",
        "conditionals": "conditionals",
    }
    found = results["programs"]["settings"]["programs"]
    rows = [[name, *(str(size[key]) for key in sizes.values())] for name, size in found.items()]
    return [["", *sizes], *rows]


def round_parts(results: Results) -> Rows:
    """Microseconds an agent of each part of a round, and its floor."""
    labels = {
        "message": "a draw from the posterior",
        "candidates": "the best of 1000 candidates, of each slab",
        "search": "Newton's method from there",
        "rest": "the rest of a query: a peer's message, what failed, other places",
        "learn": "one observation more",
    }
    kinds = {"bytes or products": "work", "random numbers": "random", "cosines": "cosines"}
    parts = results["round-parts"]["settings"]["parts"]

    def row(label: str, part: Mapping[str, float]) -> list[str]:
        least = (f"{part[kind]:.2f}" if part[kind] else "" for kind in kinds.values())
        times = f"{part['took'] / part['floor']:.1f}" if part["floor"] else ""
        return [label, f"{part['took']:.2f}", *least, times]

    kept = ("took", *kinds.values(), "floor")
    whole = {kind: sum(parts[part][kind] for part in labels) for kind in kept}
    rows = [row(label, parts[part]) for part, label in labels.items()]
    rows.append(row("the whole round", whole))
    return [["", "takes", *kinds, "times the floor"], *rows]


def prior_rounds(results: Results) -> Rows:
    """Microseconds an agent of a round of the learned prior, and in rounds of FTS."""
    took = {
        name: method["final"]["mean"] for name, method in results["prior-rounds"]["methods"].items()
    }
    rows = [[name, figure(time), f"{time / took['FTS']:.1f}"] for name, time in took.items()]
    return [["", "µs an agent", "rounds of FTS"], *rows]


def prior_population(results: Results) -> Rows:
    """A single run of many agents that learn a prior: its time, and what it holds."""
    found = results["prior-population"]["settings"]
    return [
        ["", ""],
        ["agents and rounds", f"{found['agents']:,}, {found['rounds']}".replace(",", " ", 1)],
        ["all rounds", f"{found['seconds']:.0f} s"],
        ["of both cores together", f"{found['processors']:.0f} s"],
        ["compiling", f"{found['compile']:.0f} s"],
        [
            "an agent's round",
            f"{digits(1e6 * found['seconds'] / found['agents'] / found['rounds'])} µs",
        ],
        ["memory of the program", f"{found['memory'] / 1e9:.2f} GB"],
        ["of it the state of all agents", f"{found['state'] / 1e9:.2f} GB"],
        ["a message", f"{found['message'] / 1e3:.1f} kB"],
    ]


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
    chain = found["a chain of 1811 variables on 32 points: its maximum"]
    return [
        ["", "plain", "kernels", "times as fast"],
        *(row(label, *task) for label, task in tasks.items()),
        ["100 ensembles of 11 kernels: an iteration of all", f"{digits(ensembles)} ms", "", ""],
        ["30 iterations of max-sum, 1811 pairs on 32 points", f"{digits(sums)} ms", "", ""],
        ["the maximum on a chain of 1811 variables", f"{digits(chain)} ms", "", ""],
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


def demo(results: Results) -> Rows:
    """Mean accuracy of owners, and when they reach the accuracy of the first after four."""
    methods = results["demo"]["methods"]
    curves = {name: one["accuracy"]["mean"] for name, one in methods.items()}
    aim = curves["learned prior (federated)"][3]

    def row(name: str, curve: list[float]) -> list[str]:
        cells = (f"{100 * curve[n - 1]:.1f} %" for n in (4, 10, 20, 40))
        reached = next((n for n, value in enumerate(curve, 1) if value >= aim), None)
        return [name, *cells, "-" if reached is None else str(reached)]

    head = ["after so many evaluations", "4", "10", "20", "40", f"until {100 * aim:.1f} %"]
    return [head, *(row(name, curve) for name, curve in curves.items())]


# ---------------------------------------------------------------- where and when


def measured(result: Mapping[str, Any]) -> str:
    """The device and the date of a result, and the versions of programs beside it."""
    versions = result["versions"]
    shown = ("jax", "scikit-learn", "botorch", "scipy", "numpy")
    found = ", ".join(f"{name} {versions[name]}" for name in shown if versions.get(name))
    when = result.get("date", "date not kept")
    return (
        f"*Measured on {result['device']}; {when}; {result['seconds']:.0f} seconds; with {found}.*"
    )
