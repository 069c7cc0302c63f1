"""The command line: python -m jaxbo demo | environment | version."""

import argparse
import importlib.metadata
import importlib.util
import platform
import sys
from pathlib import Path

DISTRIBUTION = "jaxbo-agents"
#: PyPI has another project of our import name.
UNRELATED = "jaxbo"
#: What each extra of the distribution brings: import name by distribution name.
EXTRAS = {
    "plot": {"matplotlib": "matplotlib"},
    "progress": {"tqdm": "tqdm"},
    "demo": {"scikit-learn": "sklearn"},
    "privacy": {"dp-accounting": "dp_accounting"},
    "bench": {"scipy": "scipy"},
    "botorch": {"torch": "torch", "botorch": "botorch"},
    "peers": {"cma": "cma", "greenlet": "greenlet", "optuna": "optuna", "smac": "smac"},
    "docs": {
        "sphinx": "sphinx",
        "myst-parser": "myst_parser",
        "sphinx-book-theme": "sphinx_book_theme",
        "sphinx-copybutton": "sphinx_copybutton",
        "sphinx-gallery": "sphinx_gallery",
    },
    "toulbar2": {"pytoulbar2": "pytoulbar2"},
    "bayes": {"blackjax": "blackjax"},
    "robot": {"box2d": "Box2D"},
    "flower": {"flwr": "flwr", "httpx": "httpx"},
    "secure": {"cryptography": "cryptography", "opendp": "opendp", "pycryptodome": "Crypto"},
    "cluster": {"distributed": "distributed"},
}
CORE = ("jax", "jaxlib", "equinox", "optax", "jaxtyping", "numpy", "filelock")
#: Seeds, rounds after the initial points, owners: the demo's defaults, and those of `--quick`.
FULL, QUICK = (8, 37, 20), (2, 7, 20)


def main(arguments: list[str] | None = None) -> int:
    """Runs a command and returns the exit status; `arguments` are the process's by default."""
    options = _parser().parse_args(arguments)
    try:
        return options.command(options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130  # as shells report an interrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jaxbo", description="Bayesian optimization by many agents, in JAX."
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    text = "Twenty owners of handwriting samples tune an SVM: federated, and alone."
    demo = commands.add_parser(
        "demo", help=text, description=f"{text} Prints a table; writes demo.png and demo.json."
    )
    for name, default, meaning in zip(
        ("seeds", "rounds", "owners"),
        FULL,
        (
            "independent repetitions, at least 2",
            "evaluations of each owner after its 3 initial ones",
            "who share the data out among them, 2 to 40",
        ),
        strict=True,
    ):
        demo.add_argument(
            f"--{name}", type=int, metavar="N", help=f"{meaning} (default: {default})"
        )
    demo.add_argument(
        "--out", type=Path, default=Path("out"), metavar="DIR", help="where to (default: out)"
    )
    demo.add_argument(
        "--quick", action="store_true", help="2 seeds of 7 rounds: a glance, not a result"
    )
    demo.set_defaults(command=_demo)

    text = "What to put in a bug report: versions, devices, precision, extras."
    environment = commands.add_parser("environment", help=text, description=text)
    environment.set_defaults(command=_environment)

    text = "The version of jaxbo."
    version = commands.add_parser("version", help=text, description=text)
    version.set_defaults(command=_version)
    return parser


def _demo(options: argparse.Namespace) -> int:
    needed = [name for extra in ("plot", "progress", "demo") for name in EXTRAS[extra].items()]
    missing = [name for name, module in needed if importlib.util.find_spec(module) is None]
    if missing:
        print(
            f"The demo needs {' and '.join(missing)}, not installed here: "
            'pip install "jaxbo-agents[demo]"',
            file=sys.stderr,
        )
        return 2
    from jaxbo import demo

    asked = (options.seeds, options.rounds, options.owners)
    defaults = QUICK if options.quick else FULL
    seeds, rounds, owners = (d if a is None else a for a, d in zip(asked, defaults, strict=True))
    try:
        demo.check(seeds, rounds, owners)
        options.out.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        print(f"jaxbo demo: {error}", file=sys.stderr)
        return 2
    demo.run(seeds, rounds, owners, options.out)
    return 0


def _environment(options: argparse.Namespace) -> int:
    del options
    import jax

    import jaxbo

    lines = {
        "jaxbo": f"{jaxbo.__version__} ({Path(jaxbo.__file__).parent})",
        **{name: _installed(name) or "missing" for name in CORE},
        "Python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "devices": ", ".join(f"{d.platform}: {d.device_kind}" for d in jax.devices()),
        "float64": "on"
        if jax.config.read("jax_enable_x64")
        else "off (JAX_ENABLE_X64=1 turns it on)",
        **{f"[{extra}]": _extra(extra) for extra in EXTRAS},
    }
    for name, value in lines.items():
        print(f"{name:11} {value}")
    if _installed(UNRELATED) is not None:
        print(
            f"\nThe unrelated package {UNRELATED} is installed too and the two overwrite each other's "
            f"files: pip uninstall {UNRELATED} {DISTRIBUTION}, then install {DISTRIBUTION} again."
        )
    return 0


def _extra(extra: str) -> str:
    return ", ".join(f"{name} {_installed(name) or 'missing'}" for name in EXTRAS[extra])


def _installed(name: str) -> str | None:
    """The version of a distribution, if it is installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _version(options: argparse.Namespace) -> int:
    del options
    from jaxbo import __version__

    print(f"jaxbo {__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
