"""The page of all claims and the tables of the site are what the results say."""

import re

import pytest

from bench import report, runner, tables


@pytest.fixture(scope="module")
def results():
    return report.load()


def test_the_page_of_claims_is_what_the_results_say(results):
    assert report.PAGE.read_text() == report.claims(results), "python -m bench report"


def test_the_tables_of_every_page_are_what_the_results_say(results):
    found = []
    for page in report.pages():
        text = page.read_text()
        found += re.findall(r"<!-- table: (\S+) -->", text)
        assert text == report.filled(text, results), f"{page}: python -m bench report"
        assert text.count("<!-- table:") == text.count("<!-- end -->"), page
    assert sorted(found) == sorted(tables.TABLES)


def test_every_claim_of_the_results_has_an_outcome_that_its_figures_give(results):
    outcomes = []
    for result in results.values():
        for claim, check in result.get("checks", {}).items():
            outcomes.append(check["outcome"])
            low, high = check["interval"] or (None, None)
            least, most = check["margin"]
            inside = (least is None or (low is not None and low >= least)) and (
                most is None or (high is not None and high <= most)
            )
            outside = (least is not None and high is not None and high <= least) or (
                most is not None and low is not None and low >= most
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
    monkeypatch.setitem(tables.TABLES, "toy", lambda results: [["", "a"], ["x", results["r"]]])
    page = "Before.\n\n<!-- table: toy -->\n\n| old |\n\n<!-- end -->\nAfter.\n"
    expected = page.replace("| old |", "| | a |\n| --- | --- |\n| x | 7 |")
    once = report.filled(page, {"r": "7"})
    assert once == expected
    assert report.filled(once, {"r": "7"}) == once


def test_another_file_is_written_and_no_page(tmp_path, monkeypatch, results, capsys):
    monkeypatch.setattr(report, "pages", lambda: pytest.fail("pages are left alone"))
    assert runner.main(["report", "--out", str(tmp_path / "all.md")]) == 0
    assert (tmp_path / "all.md").read_text() == report.claims(results)
    assert "all.md" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("mean", "error", "shown"),
    [
        (0.3482, 0.0531, "0.348 (0.053)"),
        (7.807, 0.42, "7.81 (0.42)"),
        (135.17, 13.6, "135 (14)"),
        (0.00096, 0.0000996, "0.00096 (0.00010)"),
        (0.9526, 0.0, "0.95"),
    ],
)
def test_a_mean_is_shown_to_the_second_digit_of_its_error(mean, error, shown):
    assert tables.spread(mean, error) == shown
