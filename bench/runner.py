"""Runs an experiment, prints its table, and writes NAME.json and NAME.png.

    Options -> run -> Result -> table, {"experiment", "source", "settings", "methods", "checks", ...}

An experiment is a single file: a module that `bench.EXPERIMENTS` names, with

    def run(options: Options) -> Result: ...
    EXPERIMENT = Experiment(source="FTS, Fig. 1", about="one line", time="1 min", run=run)

Whatever it measures comes back as a plain `Result`; files, table and picture are made here. Data
that is not on this machine ends the program with status 2.
"""

import argparse
import contextlib
import datetime
import importlib
import json
import os
import platform
import shutil
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import numpy as np
from filelock import FileLock, Timeout

import bench
import jaxbo
from bench.claims import LEGEND, SYMBOLS, Check, Verdict
from bench.common.text import margin, number, span, wanting
from bench.tasks.data import DataMissingError
from jaxbo import metrics, plotting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")

# Every experiment is a simulation, in whatever process.
warnings.simplefilter("ignore", jaxbo.SimulationWarning)


class ElsewhereError(Exception):
    """Another process is computing the part that is left, and will report: the name of that part."""


#: Rounds of a curve that are written; of longer ones every second, third, ... is.
MOST = 250

#: Exit statuses beside 0: data is missing (as for a wrong command line), or stopped by Ctrl-C.
MISSING, STOPPED = 2, 130

#: Packages whose versions a result depends on.
PACKAGES = (
    "jaxbo-agents",
    "jax",
    "jaxlib",
    "equinox",
    "optax",
    "numpy",
    "scipy",
    "scikit-learn",
    "torch",
    "botorch",
    "optuna",
    "cma",
    "smac",
)


# ---------------------------------------------------------------- what an experiment is


@dataclass(frozen=True)
class Options:
    """The options of the command line; `runs` and `rounds` are None, `only` empty, if they were not
    given.
    """

    out: Path = Path("out")
    seed: int = 0
    runs: int | None = None
    rounds: int | None = None
    quick: bool = False
    only: tuple[str, ...] = ()

    def runs_or(self, full: int, quick: int) -> int:
        """How many runs, by default `full`, or `quick` with --quick."""
        return self.runs or (quick if self.quick else full)

    def rounds_or(self, full: int, quick: int) -> int:
        """How many rounds, likewise."""
        return self.rounds or (quick if self.quick else full)

    def problems_or(self, full: Iterable[str], quick: Iterable[str]) -> tuple[str, ...]:
        """Which problems of several, likewise."""
        return self.only or tuple(quick if self.quick else full)


@dataclass
class Result:
    """The result of an experiment.

    `curves` has a matrix [runs rounds] for each method, in the paper's own unit, named by `unit`; a
    method's final figure is its last column, or its vector [runs] in `finals`. `headers` and `rows` are
    the table to print; without them it is made of the final figures. `details` are written and not
    printed. `figure` is the picture; without it, all curves are drawn in the same axes. `earlier` are
    the seconds that went into it before this process, which continued an interrupted process. `scratch`
    is the folder that made this possible, which is removed when all is written.
    """

    settings: dict[str, Any]
    curves: Mapping[str, np.ndarray] = field(default_factory=dict)
    finals: Mapping[str, np.ndarray] = field(default_factory=dict)
    checks: dict[str, Check] = field(default_factory=dict)
    unit: str = "simple regret"
    headers: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    figure: "Figure | None" = None
    details: Mapping[str, Any] = field(default_factory=dict)
    earlier: float = 0.0
    scratch: Path | None = None


@dataclass(frozen=True)
class Experiment:
    """A figure or a table. `about` is a line and `time` roughly its duration on two cores.

    `problems` are the choices for --only, of an experiment that is several side by side.
    """

    source: str
    about: str
    time: str
    run: Callable[[Options], Result]
    problems: tuple[str, ...] = ()


def load(name: str) -> Experiment | None:
    """The experiment of that name, if there is any."""
    where = bench.EXPERIMENTS.get(name)
    return None if where is None else importlib.import_module(where).EXPERIMENT


def experiments() -> dict[str, Experiment]:
    """All experiments by name."""
    places = sorted(bench.EXPERIMENTS.items())
    return {name: importlib.import_module(where).EXPERIMENT for name, where in places}


def kept(path: Path, compute: Callable[[], Any]) -> Any:
    """The array in the file `path`, or the tuple of several; computed and written there, in one step, if
    there is none yet.

    The seconds that it took are kept beside it. `ElsewhereError` while another process computes it.
    """
    if not path.exists():
        try:
            with FileLock(f"{path}.lock", timeout=0):
                if not path.exists():
                    _keep(path, compute)
        except Timeout as taken:
            raise ElsewhereError(path.stem) from taken
    with np.load(path) as saved:
        arrays = list(saved.values())
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


def _keep(path: Path, compute: Callable[[], Any]) -> None:
    part, start = path.with_suffix(".part.npz"), time.perf_counter()
    found = compute()
    np.savez(part, *(found if isinstance(found, tuple) else (found,)))
    path.with_suffix(".seconds").write_text(str(time.perf_counter() - start))
    os.replace(part, path)


def scratch(options: Options, name: str, size: Sequence[object]) -> Path:
    """The folder for the finished parts of an experiment of that version, seed and size."""
    stamp = "-".join(str(item) for item in (jaxbo.__version__, options.seed, *size, *options.only))
    folder = options.out / f"{name}.parts-{stamp}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def parts(
    options: Options,
    name: str,
    size: Sequence[object],
    measures: dict[str, Callable[[], Any]],
) -> tuple[dict[str, Any], Path]:
    """The measured numbers, arrays or tuples of them, by name, and the folder that keeps each as it ends.

    An experiment that was interrupted goes on where it was, if version, seed and size are the same.
    Processes that were started alike share the work: none does the work of another. In all but the last
    of them `ElsewhereError`.
    """
    folder = scratch(options, name, size)
    paths = {label: folder / f"{label}.npz".replace("/", "-") for label in measures}
    for label, measure in progress(list(measures.items()), name):
        with contextlib.suppress(ElsewhereError):
            kept(paths[label], measure)
    return {label: kept(path, measures[label]) for label, path in paths.items()}, folder


def progress(items: Iterable[T], label: str, total: int | None = None) -> Iterable[T]:
    """`items` with a bar on the terminal, if tqdm is installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        return items
    return tqdm(items, desc=label, total=total, leave=False)


# ---------------------------------------------------------------- from a result to files


def report(
    name: str, experiment: Experiment, result: Result, seconds: float, seed: int = 0
) -> dict[str, Any]:
    """The content of NAME.json. A number that is not finite becomes null."""
    spent = _spent(result.scratch)
    return {
        "experiment": name,
        "source": experiment.source,
        "seed": seed,
        "settings": _plain(result.settings),
        "methods": _methods(result),
        "checks": {claim: _plain(check.content()) for claim, check in result.checks.items()},
        "seconds": round(max(result.earlier + seconds, sum(spent.values())), 3),
        **({"details": _plain(result.details)} if result.details else {}),
        **({"seconds of parts": spent} if spent else {}),
        "date": datetime.date.today().isoformat(),
        "device": device(),
        "versions": versions(),
    }


def _spent(folder: Path | None) -> dict[str, float]:
    """Seconds that each part took, compiling included, whichever process computed it."""
    files = sorted(folder.glob("*.seconds")) if folder is not None else ()
    return {file.stem: round(float(file.read_text()), 3) for file in files}


def _methods(result: Result) -> dict[str, Any]:
    methods: dict[str, Any] = {}
    for method, values in result.curves.items():
        curve = np.asarray(values, float)
        every = -(-curve.shape[1] // MOST)
        mean, error = _mean_and_error(curve[:, every - 1 :: every])
        thinned = {"every": every} if every > 1 else {}
        methods[method] = {
            "final": _final(curve[:, -1]),
            "curve": _plain({"mean": mean, "se": error} | thinned),
        }
    for method, values in result.finals.items():
        methods.setdefault(method, {})["final"] = _final(np.asarray(values, float))
    return methods


def _final(values: np.ndarray) -> dict[str, Any]:
    mean, error = _mean_and_error(values)
    return _plain({"mean": mean, "se": error, "n": len(values)})


def _mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if len(values) == 1:  # one run has no spread
        return values[0], np.full_like(values[0], np.nan)
    return metrics.mean_and_error(values)


def _plain(value: Any) -> Any:
    """`value` in the types of JSON."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _plain(np.asarray(value).tolist())
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int) else str(value)


def device() -> str:
    """The processor or accelerator of the run."""
    first = jax.devices()[0]
    kind = processor() if first.platform == "cpu" else first.device_kind
    return f"{kind} ({first.platform}), {os.cpu_count()} cores, {platform.machine()}"


def processor() -> str:
    """The name of the processor, as far as the system says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(": ")[2] for line in lines if line.startswith("model name"))
    return next(names, platform.processor()) or "cpu"


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that matter; null for a package that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """The whole file or none: it is written under another name, then renamed."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        part.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def picture(result: Result) -> "Figure | None":
    """The result's own picture, or its curves in one; below it how many claims had which outcome."""
    figure = result.figure
    if figure is None and result.curves:
        axes: Any = plotting.regret(result.curves, ylabel=result.unit)
        figure = axes.figure
    if figure is not None and result.checks:
        figure.text(1, 0, counted(c.outcome for c in result.checks.values()), **CORNER)
    return figure


#: How the outcomes are set into a picture: small, in the lower right corner.
CORNER: dict[str, Any] = {"ha": "right", "va": "bottom", "fontsize": 7, "color": plotting.SOFT}


def counted(outcomes: Iterable[Verdict]) -> str:
    """How many claims had which outcome, by symbol."""
    every = list(outcomes)
    return "claims: " + "   ".join(f"{sign} {every.count(of)}" for of, sign in SYMBOLS.items())


# ---------------------------------------------------------------- what a person sees


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *others = [f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)]
        return "  ".join([f"{first.strip():<{widths[0]}}", *others]).rstrip()

    return "\n".join([line(headers), line(["-" * width for width in widths]), *map(line, rows)])


def text(content: Mapping[str, Any], result: Result) -> str:
    """The printed text of a result."""
    headers, rows = result.headers, result.rows
    if not rows:
        headers = ("method", result.unit, "s.e.", "runs")
        finals = {method: entry["final"] for method, entry in content["methods"].items()}
        rows = [
            (method, number(final["mean"]), number(final["se"]), str(final["n"]))
            for method, final in finals.items()
        ]
    parts = [f"{content['experiment']}: {content['source']}"]
    if rows:
        parts.append(table(headers, rows))
    if content["checks"]:
        verdicts = map(_verdict, content["checks"], content["checks"].values())
        parts.append("\n".join([*verdicts, "", LEGEND]))
    parts.append(f"{content['seconds']:.1f} s on {content['device']}")
    return "\n\n".join(parts)


def _verdict(claim: str, check: Mapping[str, Any]) -> str:
    cells = span(*check["interval"]) if check["interval"] else "", margin(*check["margin"])
    said = ", ".join(cell for cell in (*cells, wanting(check)) if cell)
    return f"{SYMBOLS[Verdict(check['outcome'])]}  {claim}: {number(check['figure'])} ({said})"


# ---------------------------------------------------------------- the command line


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status of `python -m bench`."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.list:
        print(_listing())
        return 0
    if given.name is None:
        parser.error("give the name of an experiment, or --list to see all.")
    experiment = load(given.name)
    if experiment is None:
        parser.error(
            f"no experiment is called {given.name!r}; there are {', '.join(experiments())}."
        )
    for problem in given.only:
        if problem not in experiment.problems:
            known = ", ".join(experiment.problems) or "none to choose from"
            parser.error(f"{given.name} has no problem {problem!r}; it has {known}.")
    only = tuple(given.only)
    options = Options(given.out, given.seed, given.runs, given.rounds, given.quick, only)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        _execute(given.name, experiment, options)
    except DataMissingError as missing:
        print(f"python -m bench {given.name}: {missing}", file=sys.stderr)
        return MISSING
    except ElsewhereError as part:
        print(f"another process is at the last part and will report: {part}", file=sys.stderr)
    except KeyboardInterrupt:
        print("stopped; the same command continues or starts again.", file=sys.stderr)
        return STOPPED
    return 0


def _execute(name: str, experiment: Experiment, options: Options) -> None:
    start = time.perf_counter()
    result = experiment.run(options)
    content = report(name, experiment, result, time.perf_counter() - start, options.seed)
    print(text(content, result))
    path = options.out / f"{'-'.join([name, *options.only]).lower()}.json"
    write_json(path, content)
    print(path)
    figure = picture(result)
    if figure is not None:
        print(plotting.save(figure, path.with_suffix(".png")))
    if result.scratch is not None:
        shutil.rmtree(result.scratch)


def _listing() -> str:
    rows = [(name, e.time, f"{e.about} ({e.source})") for name, e in experiments().items()]
    width = max(len(name) for name, *_ in rows)
    long = max(len(time) for _, time, _ in rows)
    return "\n".join(f"{name:<{width}}  {time:>{long}}  {about}" for name, time, about in rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="The papers' experiments, one by name. What is interrupted goes on with the "
        "same command; a long one, started twice at the same time, shares the work. `report` makes the "
        "page of all claims from the results, and the tables and outcomes of the site.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="which experiment")
    parser.add_argument(
        "--list", action="store_true", help="all experiments, with a rough time each"
    )
    parser.add_argument("--runs", type=_at_least(2), metavar="N", help="how many runs a method")
    parser.add_argument("--rounds", type=_at_least(1), metavar="N", help="how many rounds a run")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PROBLEM",
        help="one of an experiment's problems, in files of its own; can be given several times",
    )
    parser.add_argument("--seed", type=_at_least(0), default=0, metavar="S", help="default: 0")
    parser.add_argument(
        "--out", type=Path, default=Path("out"), metavar="DIR", help="for the files; default: out"
    )
    parser.add_argument("--quick", action="store_true", help="fewer runs: less than a minute")
    return parser


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {value}")
        return value

    return number
