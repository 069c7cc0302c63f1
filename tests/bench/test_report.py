"""The page of all claims, the tables and the outcomes on the site are what the results say."""

import re

import numpy as np
import pytest

from bench import outcomes, report, runner, tables
from bench.claims import Verdict
from bench.prior import growing, participation, policies, private, setting, synthetic, units
from bench.tables import cells, prior

EXPERIMENTS = sorted(set((report.ROOT / "docs/experiments").glob("*.md")) - {report.PAGE})
OTHERS = ("docs/speed.md", "docs/howto/cluster.md", "README.md")
PAGES = [*EXPERIMENTS, *(report.ROOT / name for name in OTHERS)]
#: Not measured, but names.
NAMES = re.compile(r"Python 3\.\d+|License 2\.0")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(scope="module")
def results():
    return report.load()


def test_the_page_of_claims_is_what_the_results_say(results):
    assert report.PAGE.read_text() == report.claims(results), "python -m bench report"


def test_the_tables_and_outcomes_of_every_page_are_what_the_results_say(results):
    shown, claimed = [], []
    for page in report.pages():
        text = page.read_text()
        shown += re.findall(r"<!-- table: (\S+) -->", text)
        claimed += re.findall(r"<!-- claims: (\S+) -->", text)
        assert text == report.filled(text, results, page), f"{page}: python -m bench report"
        begun = text.count("<!-- table:") + text.count("<!-- claims:")
        assert begun == text.count("<!-- end -->"), page
    made = {name for name in tables.TABLES if tables.TABLES[name](results)}
    assert made <= set(shown) <= set(tables.TABLES)
    # `cluster` is shown where clusters are explained.
    having = {one["experiment"] for one in results.values() if one.get("checks")} - {"cluster"}
    assert having <= set(claimed)
    assert sorted(set(claimed)) == sorted(claimed)
    assert sorted(set(shown)) == sorted(shown)


def test_the_outcomes_of_an_experiment_are_those_of_all_its_claims(results):
    for experiment in {one["experiment"] for one in results.values() if one.get("checks")}:
        some = [one for one in results.values() if one.get("experiment") == experiment]
        claims = {claim: check for one in some for claim, check in one["checks"].items()}
        first, *rest = outcomes.block(results, experiment, "claims.md").split("\n\n")
        for outcome, sign in outcomes.SYMBOLS.items():
            number = [check["outcome"] for check in claims.values()].count(outcome)
            assert f"{number} {sign} {outcome}" in first
            # Cells that say the same twice are one.
            marks = re.findall(rf" {re.escape(sign)}(?=[ ,])", "\n".join(rest))
            assert len(marks) <= number, experiment
            assert bool(marks) == (number > 0), experiment


def test_every_grid_takes_a_claim_of_a_result(results):
    for experiment, grids in outcomes.GRIDS.items():
        some = [one for one in results.values() if one.get("experiment") == experiment]
        claims = [claim for one in some for claim in one["checks"]]
        for grid in grids if some else ():
            assert any(grid.place(claim) for claim in claims), (experiment, grid.pattern)


def check(figure, outcome, most):
    return {
        "figure": figure,
        "outcome": outcome,
        "margin": [None, most],
        "interval": [figure - 1, figure + 1],
        "needed": 7,
        "runs": 3,
        "how": "paired",
    }


@pytest.mark.parametrize(
    ("margins", "title", "head", "side", "cell"),
    [
        ((2, 2, 2, 2), "Ratio, at most 2:", "| | x | y |", "| a |", "1.50 ✓"),
        ((2, 3, 2, 3), "Ratio:", "| | x (at most 2) | y (at most 3) |", "| a |", "1.50 ✓"),
        ((2, 2, 3, 3), "Ratio:", "| | x | y |", "| a (at most 2) |", "1.50 ✓"),
        ((2, 3, 4, 5), "Ratio:", "| | x | y |", "| a |", "1.50 ✓ (at most 2)"),
    ],
)
def test_a_grid_says_a_margin_once(monkeypatch, margins, title, head, side, cell):
    monkeypatch.setitem(
        outcomes.GRIDS, "toy", (outcomes.Grid("Ratio", r"(?P<row>\w) beside (?P<column>\w)"),)
    )
    names = ("a beside x", "a beside y", "b beside x", "b beside y")
    found = [Verdict.HOLDS, Verdict.REFUTED, Verdict.UNDECIDED, Verdict.HOLDS]
    checks = {
        name: check(1.5, str(outcome), most)
        for name, outcome, most in zip(names, found, margins, strict=True)
    }
    checks["another | claim"] = check(4.0, "refuted", 2)
    block = outcomes.block({"toy-1": {"experiment": "toy", "checks": checks}}, "toy", "all.md")
    assert block.startswith("Outcomes: 2 ✓ holds, 2 ✗ refuted, 1 ? undecided.")
    assert "[toy-1](all.md#toy-1)" in block
    for part in (title, head, side, f"{side} {cell} | 1.50 ✗"):
        assert part in block
    assert "| another \\| claim | at most 2 | 4 | 3 to 5 | ✗ |" in block


def result(experiment, curves, checks):
    """As it would be read from a file."""
    made = runner.Result(settings={}, curves=curves, checks=checks)
    return runner.report(experiment.source, experiment, made, seconds=1.0)


def test_newcomers_have_a_table_and_grids_for_all_claims(rng):
    methods = [(method, n) for method in growing.METHODS for n in growing.FINISHED]
    curves = {
        growing.label(name, method, n, steps): rng.random((3, growing.QUERIES))
        for name in ("alike", "unrelated")
        for method, n in methods
        for steps in (growing.STEPS, *growing.OTHER_STEPS)
    }
    checks = growing.checks(curves, ("alike", "unrelated"))
    results = {"prior-growing-alike": result(growing.EXPERIMENT, curves, checks)}
    head, first, second, *_ = tables.TABLES["prior-growing"](results)
    assert head == ["finished", "1", "3", "10", "19", "30", "100"]
    assert first[0] == "nine tenths in common: EI, alone"
    assert first[1] == cells.after(results["prior-growing-alike"], "alike, EI", (1, 5))
    assert second[0] == "nine tenths in common: FTS"
    assert [bool(cell) for cell in second[1:]] == [True, True, True, False, True, True]
    head, steps, _ = tables.TABLES["prior-steps"](results)
    assert head == ["steps", "1", "3", "10", "30"]
    ours = growing.label("alike", setting.CLAIMED, growing.OF, 3)
    assert steps[2] == cells.after(results["prior-growing-alike"], ours, (1, 5))
    block = outcomes.block(results, "prior-growing", "claims.md")
    assert "| claim |" not in block
    assert "| nothing in common, n = 30 (at most 1.05) |" in block


def test_owners_of_the_demo_save_more_than_half_of_their_evaluations(results):
    # As the first paragraph of the README says.
    _, ours, _, *alone = tables.TABLES["demo"](results)
    assert ours[0] == "learned prior (federated)"
    assert [name for name, *_ in alone] == ["EI (alone)", "TS (alone)"]
    assert all(int(ours[-1]) < int(row[-1]) / 2 for row in alone)


def test_policies_have_a_table_and_grids_for_all_claims(rng):
    pairs = [(name, method) for name in policies.NAMES for method in policies.METHODS]
    regret = {pair: rng.random((3, 20)) for pair in pairs}
    curves = {", ".join(pair): curve for pair, curve in regret.items()}
    made = result(policies.EXPERIMENT, curves, policies.checks(regret))
    made["experiment"] = "prior-policies"
    head, first, *rest = tables.TABLES["prior-policies"]({"prior-policies": made})
    assert len(head) == 1 + len(policies.METHODS)
    assert first[:2] == ["half in common", cells.after(made, "half, EI", policies.AFTER)]
    assert first[-1] == cells.after(made, "half, Thompson, mixing", policies.AFTER)
    assert len(rest) == len(policies.NAMES) - 1
    block = outcomes.block({"prior-policies": made}, "prior-policies", "claims.md")
    assert "| claim |" not in block
    assert "| nothing in common, Thompson |" in block


def test_participation_has_a_table_with_what_is_sent_and_a_grid_for_all_claims(rng):
    pairs = [(name, method) for name in participation.NAMES for method in participation.METHODS]
    regret = {pair: rng.random((3, 20)) for pair in pairs}
    curves = {", ".join(pair): curve for pair, curve in regret.items()}
    made = result(participation.EXPERIMENT, curves, participation.checks(regret))
    made["experiment"] = "prior-participation"
    made["settings"] = {"numbers an agent and round": dict.fromkeys(participation.METHODS, 12.4)}
    head, *rows = tables.TABLES["prior-participation"]({"prior-participation": made})
    assert head[2:] == [
        "nine tenths in common",
        "half in common",
        "alike, half of them upside down",
    ]
    few = next(row for row in rows if row[0] == participation.FEW)
    assert few[1] == "12"
    assert few[-1] == cells.after(made, f"opposed, {participation.FEW}", (4, 5, 10, 20))
    block = outcomes.block({"prior-participation": made}, "prior-participation", "claims.md")
    assert "| claim |" not in block
    assert "| half in common, beside rank 10, all |" in block


def test_units_have_a_table_and_grids_for_all_claims(rng):
    pairs = [(name, method) for name in units.FAMILIES for method in units.METHODS]
    regret = {pair: rng.random((3, 20)) for pair in pairs}
    curves = {", ".join(pair): curve for pair, curve in regret.items()}
    made = result(units.EXPERIMENT, curves, units.checks(regret))
    made["experiment"] = "prior-units"
    head, *rows = tables.TABLES["prior-units"]({"prior-units": made})
    assert len(head) == 1 + len(units.FAMILIES)
    assert len(rows) == len(units.METHODS)
    assert rows[-2][-1] == cells.after(made, f"unrelated, {units.OWN}", (5, 10, 20))
    block = outcomes.block({"prior-units": made}, "prior-units", "claims.md")
    assert "| claim |" not in block
    assert block.count("| half in common |") == 3
    assert block.count("| nothing in common |") == 3


def test_the_bound_is_beside_the_best_rival_of_the_claims(rng):
    curves = {
        f"{family}, {method}": np.full((3, 20), 4.0)
        for family in ("alike", "half", "opposed")
        for method in synthetic.METHODS
    }
    curves |= {"half, RGPE": np.full((3, 20), 2.0), f"half, {setting.BOUND}": np.ones((3, 20))}
    made = {"prior-synthetic": result(synthetic.EXPERIMENT, curves, {})}
    assert tables.TABLES["prior-least"](made)[2] == ["half in common", "0.50", "0.50"]
    assert (*setting.ALONE, *setting.RIVALS) == prior.RIVALS


def test_private_priors_have_a_table_and_grids_for_all_claims(rng):
    curves = {
        f"{agents} agents, {method}": rng.random((3, private.ROUNDS))
        for agents in private.RUNS
        for method in private.METHODS
    }
    made = result(private.EXPERIMENT, curves, private.checks(curves))
    head, first, *rest = tables.TABLES["prior-private"]({"prior-private": made})
    assert head == ["", "50 agents", "500 agents", "5000 agents"]
    assert first[:2] == ["alone", cells.after(made, "50 agents, alone", (1, 3, 5))]
    assert [row[0] for row in rest] == list(private.METHODS[1:])
    block = outcomes.block({"prior-private": made}, "prior-private", "claims.md")
    assert "| claim |" not in block
    assert "| 500 agents, ε = 1 (at least 0.9) |" in block


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({}, "toy, no date; 2"),
        ({"seed": 0, "date": "2026-11-30"}, "toy, 2026-11-30; 2"),
        ({"seed": 1, "date": "2026-11-30"}, "toy, seed 1, 2026-11-30; 2"),
    ],
)
def test_the_page_says_when_a_result_was_made_and_if_its_seed_is_its_own(known, words):
    one = {
        "source": "toy",
        "seconds": 2.0,
        "device": "a laptop",
        "checks": {"a": check(1, "holds", 2)},
    }
    assert f"{words} seconds on a laptop" in report.claims({"toy": one | known})


def test_the_page_names_results_that_have_no_claims():
    one = {"source": "toy", "seconds": 2.0, "device": "a laptop", "checks": {}}
    two = one | {"checks": {"a": check(1, "holds", 2)}}
    page = report.claims({"bare": one, "toy": two})
    assert "without claims: [bare](../../bench/results/bare.json).\n" in page
    assert "without claims" not in report.claims({"toy": two})


def test_the_table_of_learned_structures_has_regret_and_seconds_of_a_run():
    problems = ("Hartmann-6", "Shekel-4", "Michalewicz-10")
    names = [f"{p}, DEC-HBO, {m}" for p in problems for m in ("learned", "pairs")]
    made = {
        "settings": {"runs": 4},
        "methods": {
            name: {"final": {"mean": i, "se": 0.5, "n": 4}} for i, name in enumerate(names, 1)
        },
        "seconds of parts": {name: 4.0 * i for i, name in enumerate(names, 1)},
    }
    head, learned, pairs = tables.TABLES["dec-learned"]({"dec-learned": made})
    assert head[1:] == list(problems)
    assert learned[1:] == ["1.00 (0.50); 1.0 s", "3.00 (0.50); 3.0 s", "5.00 (0.50); 5.0 s"]
    assert pairs[1:] == ["2.00 (0.50); 2.0 s", "4.00 (0.50); 4.0 s", "6.00 (0.50); 6.0 s"]


def test_the_table_of_a_cluster_has_means_and_their_errors():
    ways = ("asynchronous", "in rounds")
    busy, seconds = (
        {"asynchronous": [0.8, 0.9], "in rounds": [0.5, 0.6]},
        {way: [8.0, 9.0] for way in ways},
    )
    made = {
        "settings": {"utilization": busy, "until the last start": busy, "seconds": seconds},
        "methods": {way: {"final": {"mean": 1.0, "se": 0.5, "n": 2}} for way in ways},
    }
    rows = tables.TABLES["cluster"]({"cluster": made})
    assert [row[1:] for row in rows] == [
        list(ways),
        ["85 % (5 %)", "55 % (5 %)"],
        ["85 % (5 %)", "55 % (5 %)"],
        ["8.50 (0.50)", "8.50 (0.50)"],
        ["1.00 (0.50)", "1.00 (0.50)"],
    ]


def test_an_experiment_that_has_not_run_says_so():
    assert "not been run" in tables.made("prior-growing", {})
    assert "not been run" in tables.made("prior-private", {})
    assert "not been run" in tables.made("prior-policies", {})
    assert "not been run" in outcomes.block({}, "prior-growing", "claims.md")


def typed(text):
    """Decimal numbers in sentences, but for settings and for what was measured apart."""
    text = report.REGION.sub("", text)
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)
    found = []
    apart = False
    for paragraph in map(str.strip, NAMES.sub("", text).split("\n\n")):
        table = paragraph.startswith("|")
        settings = paragraph.startswith("*") and paragraph.endswith("*")
        apart = paragraph.startswith("*Measured apart") or (apart and table)
        if not (settings or apart):
            found += re.findall(r".*\b\d+\.\d+\b.*|.*\b\d+e-?\d+\b.*", paragraph)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_measured_number_is_typed_in_a_sentence(page):
    assert typed(page.read_text()) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It is 0.55 here.", ["It is 0.55 here."]),
        ("A gap of 1e-5.", ["A gap of 1e-5."]),
        ("| a | 0.5 |", ["| a | 0.5 |"]),
        ("With `z = 0.5` and [a link](figure-1.5.md).", []),
        ("*A length of 0.2, 30 runs.*", []),
        ("*Measured apart:* it is 0.55.\n\n| a | 0.5 |", []),
        ("*Measured apart:* it is 0.55.\n\nIt is 0.6.", ["It is 0.6."]),
        ("<!-- table: toy -->\n\n| 0.5 |\n\n<!-- end -->", []),
        ("```python\nx = 0.5\n```", []),
    ],
)
def test_a_typed_number_is_found(text, expected):
    assert typed(text) == expected


def test_tables_of_times_say_where_and_when(results):
    for name, result in tables.TIMED.items():
        last = tables.made(name, results).splitlines()[-1]
        assert results[result]["device"] in last
        assert results[result]["date"] in last


def test_every_claim_of_the_results_has_an_outcome_that_its_figures_give(results):
    outcomes = []
    for result in results.values():
        for claim, check in result.get("checks", {}).items():
            outcomes.append(check["outcome"])
            low, high = check["interval"] or (None, None)
            least, most = check["margin"]
            # An interval that ends at the margin decides nothing: equal runs are not below each other.
            inside = (least is None or (low is not None and low > least)) and (
                most is None or (high is not None and high < most)
            )
            outside = (least is not None and high is not None and high < least) or (
                most is not None and low is not None and low > most
            )
            if check["interval"] is not None:
                expected = "holds" if inside else "refuted" if outside else "undecided"
                assert check["outcome"] == expected, claim
            elif check["how"] in ("runs not kept", "one run"):
                assert check["outcome"] == "undecided", claim
    assert set(outcomes) == {"holds", "refuted", "undecided"}
    counts = [outcomes.count(one) for one in ("holds", "refuted", "undecided")]
    first = report.claims(results).partition("| all | ")[2].splitlines()[0]
    assert first.split(" | ")[:3] == list(map(str, counts))


def test_a_table_is_filled_in_where_it_is_named(monkeypatch):
    monkeypatch.setitem(
        tables.TABLES, "toy", lambda results: [["", "a"], ["x", results["r"]["figure"]]]
    )
    page = "Before.\n\n<!-- table: toy -->\n\n| old |\n\n<!-- end -->\nAfter.\n"
    expected = page.replace("| old |", "| | a |\n| --- | --- |\n| x | 7 |")
    once = report.filled(page, {"r": {"figure": "7"}})
    assert once == expected
    assert report.filled(once, {"r": {"figure": "7"}}) == once
    # With nothing in it, it ends where it ends.
    empty = "<!-- table: toy -->\n<!-- end -->\nKept.\n"
    assert report.filled(empty + page, {"r": {"figure": "7"}}).endswith("Kept.\n" + once)


def test_another_file_is_written_and_no_page(tmp_path, monkeypatch, results, capsys):
    monkeypatch.setattr(report, "pages", lambda: pytest.fail("pages are left alone"))
    assert report.main(["--out", str(tmp_path / "all.md")]) == 0
    assert (tmp_path / "all.md").read_text() == report.claims(results)
    assert "all.md" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("mean", "error", "shown"),
    [
        (0.3482, 0.0531, "0.348 (0.053)"),
        (7.807, 0.42, "7.81 (0.42)"),
        (135.17, 13.6, "135 (14)"),
        (0.00096, 0.0000996, "0.00096 (0.00010)"),
        (0.9526, 0.0, "0.953"),
        (0.00000216, 0.00000055, "2.2e-06 (6e-07)"),
    ],
)
def test_a_mean_is_shown_to_the_second_digit_of_its_error(mean, error, shown):
    assert cells.spread(mean, error) == shown
