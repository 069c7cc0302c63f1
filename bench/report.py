"""`python -m bench report`: a page of all claims, tables and outcomes of all pages, from bench/results.

Nothing is computed anew. `--out FILE` writes the page of claims there and leaves the pages as they are.
"""

import argparse
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import outcomes, tables
from bench.claims import SYMBOLS, Verdict
from bench.tables.cells import Results, markdown

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "experiments" / "claims.md"
#: A block stands between a line that names it and a line that ends it.
REGION = re.compile(r"(<!-- (table|claims): (\S+) -->\n)(?:.*?\n)??(<!-- end -->)", flags=re.S)

HEAD = f"""# All claims

This page is made from the files of `bench/results` by `python -m bench report`.

A claim has a margin, and its figure has a 95 % interval, which decides. Experiments state margins in
their code, before they run. If a result has no date, its margins may have been chosen when its figures
were known. A *seed* is named if it is not 0. Such a
result repeats an older one by other runs, after the margins were stated. The outcomes are:

- {SYMBOLS[Verdict.HOLDS]} The claim holds: the whole interval lies within the margin.
- {SYMBOLS[Verdict.REFUTED]} The claim is refuted: the whole interval lies outside.
- {SYMBOLS[Verdict.UNDECIDED]} The claim is undecided: the interval lies on both sides.
  The number of runs beside the sign would decide, if the figure stayed where it is.

An interval is made in one of these ways:

- *paired*: by Student's distribution, from the differences of runs with the same objective and key
- *apart*: by Welch's version of it, from independent runs
- *apart, from errors*: the same, from means and standard errors, since the runs were not kept.
  It is wider than the interval of pairs whose runs go up and down together.
- *of a curve*: a mean over rounds is given the mean of the rounds' errors. Its own error is never larger
- *paired, ends not kept*: the paired runs decided with the same margin, and only this was written down
- *mean*, *share*, *median*: of a single method
- *mean, largest spread*: from the mean of a share, which bounds the spread of the share
- *over problems*: by Student's distribution, with problems in the place of runs
- *bound*: the figure is itself a bound of 95 % confidence
- *counted*: from the number of data sets that surely count to the number that may
- *runs not kept* and *one run*: nothing decides
- *not random*: a size, a count or a time meets the margin or does not
"""


def load() -> Results:
    """All results by name."""
    files = sorted((ROOT / "bench" / "results").glob("*.json"))
    return {file.stem: json.loads(file.read_text()) for file in files}


# ---------------------------------------------------------------- the page of claims


def claims(results: Results) -> str:
    """The page."""
    parts = [HEAD, _counts(results)]
    parts += [_experiment(name, result) for name, result in results.items() if result.get("checks")]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _counts(results: Results) -> str:
    def row(name: str, *found: Mapping[str, Any]) -> list[str]:
        every = [check["outcome"] for result in found for check in result["checks"].values()]
        return [name, *(str(every.count(one)) for one in SYMBOLS), str(len(every))]

    shown = {name: result for name, result in results.items() if result.get("checks")}
    rows = [row(f"[{name}](#{name})", result) for name, result in shown.items()]
    head = ["experiment", *(f"{sign} {outcome}" for outcome, sign in SYMBOLS.items()), "claims"]
    table = markdown([head, row("all", *shown.values()), *rows])
    others = ", ".join(
        f"[{name}](../../bench/results/{name}.json)" for name in results if name not in shown
    )
    return f"{table}\n\nResults without claims: {others}." if others else table


def _seed(result: Mapping[str, Any]) -> str:
    """The seed, if it is not 0."""
    seed = result.get("seed", 0)
    return f", seed {seed}" if seed else ""


def _date(result: Mapping[str, Any]) -> str:
    """The date, or that there is none."""
    return f", {result['date']}" if "date" in result else ", no date"


def _experiment(name: str, result: Mapping[str, Any]) -> str:
    seconds, device = result["seconds"], result["device"]
    rows = [outcomes.row(claim, check) for claim, check in result["checks"].items()]
    head = ["claim", "margin", "figure", "95 % interval", "", "runs", "how"]
    return "\n\n".join(
        [
            f"## {name}",
            f"{result['source']}{_seed(result)}{_date(result)}; {seconds:.0f} seconds on {device}. "
            f"[Result](../../bench/results/{name}.json)",
            markdown([head, *rows]),
        ]
    )


# ---------------------------------------------------------------- tables of other pages


def pages() -> Iterator[Path]:
    """The pages that may have tables or outcomes."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def filled(text: str, results: Results, page: Path = PAGE) -> str:
    """The page with its tables and its outcomes of claims made anew."""
    claimed = os.path.relpath(PAGE, page.parent)

    def made(region: re.Match[str]) -> str:
        begin, kind, name, end = region.groups()
        if kind == "claims":
            return f"{begin}\n{outcomes.block(results, name, claimed)}\n\n{end}"
        return f"{begin}\n{tables.made(name, results)}\n\n{end}"

    return REGION.sub(made, text)


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench report", description=__doc__)
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help=f"default: {PAGE.name} of the site"
    )
    out, results = parser.parse_args(arguments).out, load()
    (out or PAGE).write_text(claims(results))
    print(out or PAGE)
    for page in pages() if out is None else ():
        text = page.read_text()
        if text != (new := filled(text, results, page)):
            page.write_text(new)
            print(page)
    return 0
