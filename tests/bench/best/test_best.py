"""The comparison with other libraries: equal beginnings, equal counts, and figures from regrets."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench import runner
from bench.best import blackbox, compare, ours, problems, search
from bench.best.problems import CLASSICAL, INITIAL, NOISY, CubeProblem
from bench.common import peers
from bench.tables import best as tables
from bench.tables.cells import digits
from jaxbo.algos.random_search import RandomSearch
from jaxbo.domains.base import Cube
from jaxbo.objectives.functions import TestFunction, branin

RUNS, ROUNDS = 2, 3
OURS = ours.method


@pytest.mark.full
def test_words_of_one_kind_add_up_and_words_of_several_restrict_each_other():
    every = problems.everything()
    assert len({problem.name for problem in every}) == len(every) == 2 * 24 * 4 * 3 + 12 + 5
    found = problems.chosen(("odd", "2d", "5d", "i1", "bbob"))
    assert len(found) == 12 * 2
    assert {problem.number % 2 for problem in found} == {1}
    assert problems.chosen(()) == every
    both = (*problems.chosen(("odd",)), *problems.chosen(("even",)))
    assert sorted(p.name for p in both) == sorted(p.name for p in every)


def test_ours_is_for_the_domain_and_the_evaluations():
    (problem,) = problems.chosen(("bbob", "f03", "5d", "i2"))
    for make in (OURS, *ours.BESIDE.values()):
        method = make(cube := Cube(problem.dim), 30, 1)
        assert method.domain == cube
        assert method.capacity == 30


@pytest.mark.full
def test_classical_functions_of_a_dimension_are_arguments_of_one_program():
    structures = {}
    for problem in problems.chosen(("classical",)):
        x = np.random.default_rng(problem.number).random((3, problem.dim))
        values = [float(problem.argument(jnp.asarray(one, float))) for one in x]
        assert isinstance(problem.function, TestFunction)
        shortfalls = float(problem.function.maximum) - np.array(values)
        np.testing.assert_allclose(shortfalls, problem.regrets(x), rtol=1e-5)
        structures.setdefault(problem.dim, set()).add(jax.tree.structure(problem.argument))
    assert set(structures) == {2, 3, 4, 5, 6, 10}
    assert all(len(found) == 1 for found in structures.values())


def test_words_choose_functions_of_many_coordinates_whose_regret_is_beside_a_bound():
    found = {problem.dim: problem for problem in problems.chosen(("high", "60d", "h04", "h05"))}
    assert list(found) == [60]
    x = np.random.default_rng(0).random((3, 60))
    values = [float(found[60].argument(jnp.asarray(one, float))) for one in x]
    np.testing.assert_allclose(-np.array(values), found[60].regrets(x), rtol=1e-4)
    assert len(problems.chosen(("high",))) == 5


def test_a_method_of_ours_stands_beside_the_first_if_it_is_named(light, monkeypatch, tmp_path):
    assert blackbox._methods(("DECHBO", "odd")) == (ours.NAME, "DECHBO")
    assert "DECHBO" not in blackbox._methods(("odd",))
    monkeypatch.setitem(ours.BESIDE, "DECHBO", lambda domain, n, k: RandomSearch(domain, k))
    words = ["--only=c01", "--only=DECHBO", f"--runs={RUNS}", f"--rounds={ROUNDS}"]
    assert runner.main(["best", *words, "--out", str(tmp_path)]) == 0
    content = json.loads((tmp_path / "best-c01-dechbo.json").read_text())
    (claim,) = content["checks"]
    assert claim == f"classical, {ROUNDS} evaluations: less regret than DECHBO, ratio"
    # Here both are random search with the same keys.
    assert content["checks"][claim]["figure"] == pytest.approx(1)


def test_the_table_knows_which_best_points_are_on_the_border():
    def at_border(function):
        return bool(((function.maximizers == 0) | (function.maximizers == 1)).any())

    chosen = problems.chosen(("classical",))
    assert {f"c{p.number:02d}" for p in chosen if at_border(p.function)} == tables.AT_BORDER


@pytest.mark.full
def test_all_methods_begin_with_the_same_points_values_and_noise(light):
    problem = CubeProblem("noisy Branin", NOISY, "-", 1, 1, CLASSICAL, branin())
    assert problem.noise() == pytest.approx(0.01 * problem.scale())
    mine = search.of_ours(problem, RUNS, ROUNDS, 0)
    theirs = search.of_peer(peers.at_random, problem, RUNS, ROUNDS, 0)
    assert mine.x.shape == theirs.x.shape == (RUNS, INITIAL + ROUNDS, 2)
    np.testing.assert_array_equal(mine.x[:, :INITIAL], theirs.x[:, :INITIAL])
    # A constant apart: a peer is told minus the regret.
    assert isinstance(problem.function, TestFunction)
    shift = float(problem.function.maximum)
    np.testing.assert_allclose(
        mine.observed[:, :INITIAL] - shift, theirs.observed[:, :INITIAL], atol=1e-3
    )
    for runs in (mine, theirs):
        exact = np.stack([-problem.regrets(x) for x in runs.x])
        noise = (runs.observed - exact - shift * (runs is mine)) / problem.noise()
        assert 0.3 < noise.std() < 2
        assert abs(noise).min() > 0
    assert not np.array_equal(mine.x[0], mine.x[1])


def test_the_regret_is_without_noise_and_of_the_best_observed():
    problem = CubeProblem("Branin", NOISY, "-", 1, 1, CLASSICAL, branin())
    x = np.array([[0.5, 0.5], [0.9, 0.9], [0.1, 0.2]])
    exact = problem.regrets(x)
    runs = search.Runs(x[None], np.array([[0.0, 1.0, 0.5]]), np.array(0), np.array(0))
    np.testing.assert_array_equal(search.regrets(problem, runs), exact[[0, 1, 1]][None])


def test_a_peer_that_counts_or_begins_otherwise_is_refused():
    (problem,) = problems.chosen(("bbob", "f01", "2d", "i1"))

    def longer(evaluate, initial, rounds, seed):
        peers.at_random(evaluate, initial, rounds - 1, seed)

    def elsewhere(evaluate, initial, rounds, seed):
        peers.at_random(evaluate, initial[::-1], rounds, seed)

    for cheat in (longer, elsewhere):
        with pytest.raises(RuntimeError, match="began elsewhere"):
            search.of_peer(cheat, problem, 1, ROUNDS, 0)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.full) if peer.slow else name
        for name, peer in peers.PEERS.items()
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_every_peer_stays_in_the_cube_and_gains(name):
    peer = peers.PEERS[name]
    if peer.missing():
        pytest.skip(f"no {peer.missing()} here")
    (problem,) = problems.chosen(("bbob", "f01", "2d", "i1"))
    runs = search.of_peer(peer.search, problem, 2, 20, 0)
    assert ((runs.x >= 0) & (runs.x <= 1)).all()
    found = search.regrets(problem, runs)
    assert (found[:, -1] < found[:, INITIAL - 1]).all()
    assert not np.array_equal(runs.x[0], runs.x[1])


def test_a_group_has_the_geometric_mean_of_its_ratios_and_counts_decided_problems():
    rng = np.random.default_rng(0)
    base, spread = rng.normal(size=(3, 10)), 0.1 * rng.normal(size=(3, 10))
    # A tenth of the peer's regret, the same, and a hundred times as much.
    pairs = [(base[i] + step, base[i] + spread[i]) for i, step in enumerate((-1.0, 0.0, 2.0))]
    wide = [(0.1 * a, 0.1 * b) for a, b in pairs[1:2]]
    pairs = [(0.01 * base[0] - 1, 0.01 * base[0]), *wide, (0.01 * base[2] + 2, 0.01 * base[2])]
    found = compare.ratio(pairs)
    assert (found.wins, found.ties, found.losses) == (1, 1, 1)
    ratios = [10 ** (a.mean() - b.mean()) for a, b in pairs]
    assert found.figure == pytest.approx(np.prod(ratios) ** (1 / 3))
    assert found.check().undecided
    clear = compare.ratio(pairs[:1] * 3)
    assert clear.figure == pytest.approx(0.1)


def test_the_interval_of_a_median_covers_it_and_few_runs_have_their_range():
    few = compare.median(np.array([3.0, 1.0, 2.0]))
    assert few == (1.0, 2.0, 3.0)
    draws = np.random.default_rng(1).normal(size=(500, 15))
    covered = np.mean([low < 0 < high for low, _, high in map(compare.median, draws)])
    assert 0.94 < covered < 0.99


def test_small_regrets_count_as_much_as_the_floor():
    logs = compare.log_regrets(np.array([0.0, 1e-9, 1.0]), scale=10.0)
    np.testing.assert_allclose(logs, [-5, -5, 0])


def test_the_experiment_reports_ratios_medians_and_times(light, tmp_path, capsys):
    words, size = ["--only=c01", "--only=random"], [f"--runs={RUNS}", f"--rounds={ROUNDS}"]
    assert runner.main(["best", *words, *size, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "processor time" in printed
    assert (tmp_path / "best-c01-random.png").exists()
    content = json.loads((tmp_path / "best-c01-random.json").read_text())
    name = f"classical c01 Branin, {ROUNDS}"
    for low, middle, high in content["details"]["median regret"][name].values():
        assert 0 < low <= middle <= high
    (problem,) = problems.chosen(("c01",))
    both = (
        search.of_ours(problem, RUNS, ROUNDS, 0),
        search.of_peer(peers.at_random, problem, RUNS, ROUNDS, 0),
    )
    mine, theirs = (np.log10(search.regrets(problem, runs)[:, -1]) for runs in both)
    for method, logs in (("jaxbo", mine), ("random", theirs)):
        final = content["methods"][f"classical c01 Branin, {method}, {ROUNDS}"]["final"]
        assert (final["mean"], final["n"]) == (pytest.approx(logs.mean()), RUNS)
    (check,) = content["checks"].values()
    assert check["outcome"] == "undecided"  # of one problem
    assert check["figure"] == pytest.approx(10 ** (mine.mean() - theirs.mean()))


def test_of_several_results_a_table_is_of_the_one_with_the_most_peers():
    few, many = {"methods": {}}, {"methods": {}}
    results = {"best-odd-random": few, "best-odd-random-tpe": many, "best-even-random-tpe-x": few}
    assert tables._found(results, "best-odd") is many
    assert tables._found(results, "best-none") is None


def test_a_slow_peer_has_fewer_runs_and_is_compared_as_far_as_it_goes(light, monkeypatch, tmp_path):
    slow = peers.Peer(peers.at_random, (), "uniform points", slow=True)
    monkeypatch.setitem(peers.PEERS, "TPE", slow)
    monkeypatch.setattr(blackbox, "BUDGETS", (2, ROUNDS))
    monkeypatch.setattr(blackbox, "SLOW_ROUNDS", 2)
    words = ["--only=c01", "--only=c02", "--only=random", "--only=TPE"]
    size = [f"--runs={(runs := 5)}", f"--rounds={ROUNDS}"]
    assert runner.main(["best", *words, *size, "--out", str(tmp_path)]) == 0
    content = json.loads((tmp_path / "best-c01-c02-random-tpe.json").read_text())
    finals = {key: one["final"] for key, one in content["methods"].items()}
    names = ["classical c01 Branin", "classical c02 drop-wave"]
    expected = {(method, budget): runs for method in ("jaxbo", "random") for budget in (2, ROUNDS)}
    expected["TPE", 2] = blackbox.slow_runs(runs)
    assert {key: final["n"] for key, final in finals.items()} == {
        f"{name}, {method}, {budget}": n
        for name in names
        for (method, budget), n in expected.items()
    }
    assert blackbox.slow_runs(runs) < runs
    assert set(content["checks"]) == {
        "classical, 3 evaluations: less regret than random, ratio",
        "classical, 2 evaluations: less regret than TPE, ratio",
    }
    # The table has no figure where the peer has none.
    head, first, last = tables._ratios(content, {"all": names})
    assert head == ["problems", "evaluations", "random search", "TPE (Optuna)"]
    assert [first[:2], last[:2]] == [["all (2)", "2"], ["all (2)", "3"]]
    mine, theirs = ([finals[f"{n}, {one}, 2"]["mean"] for n in names] for one in ("jaxbo", "TPE"))
    assert first[3].startswith(digits(float(10 ** (np.mean(mine) - np.mean(theirs)))))
    assert last[3] == ""


def test_a_peer_that_is_not_installed_is_left_out_with_a_line(monkeypatch, capsys):
    absent = peers.Peer(peers.at_random, ("no_such_package",), "none")
    monkeypatch.setitem(peers.PEERS, "absent", absent)
    assert blackbox._methods(("absent", "random")) == (ours.NAME, "random")
    assert "absent is left out: no no_such_package here" in capsys.readouterr().err


def test_starts_differ_from_run_to_run_and_from_problem_to_problem():
    one, other = problems.chosen(("bbob", "2d", "i1", "f01", "f03"))
    first = problems.start(one, 0, ROUNDS, 0)
    assert not np.array_equal(first.x, problems.start(one, 1, ROUNDS, 0).x)
    assert not np.array_equal(first.x, problems.start(other, 0, ROUNDS, 0).x)
    np.testing.assert_array_equal(first.x, problems.start(one, 0, ROUNDS, 0).x)
    assert first.noise.shape == (INITIAL + ROUNDS,)


def test_tasks_of_many_coordinates_have_the_geometric_mean_of_the_regret_and_a_factor():
    ends = {"jaxbo": {"mean": -1.0, "se": 0.0}, "DECHBO": {"mean": 1.0, "se": np.log10(2.0)}}
    name = "high h01 rover-20"
    methods = {f"{name}, {method}, 20": {"final": end} for method, end in ends.items()}
    head, row = tables.best_high({"best-high-20d-dechbo": {"methods": methods}})
    assert head == ["task and coordinates", "evaluations", "`BO`", "`DECHBO`, learned structure"]
    assert row == [
        "rover-20",
        "20",
        f"{digits(0.1)} ({digits(1.0)})",
        f"{digits(10.0)} ({digits(2.0)})",
    ]
    assert tables.best_high({}) == []
    methods = {"classical c05 Hartmann-3, Fitted, 50": {"final": ends["jaxbo"]}}
    head, row = tables.best_beside({"best-classical-dechbo-fitted": {"methods": methods}})
    assert head == ["function", "evaluations", "`EGP`, `Fitted` and `EI`"]
    assert row == ["Hartmann-3", "50", f"{digits(0.1)} ({digits(1.0)})"]


def test_the_aim_is_judged_beside_the_best_of_the_others():
    logs = {"jaxbo": [-1.0, -1.1, -0.9], "TPE": [0.0, 0.0, 0.0], "CMA-ES": [-0.4, -0.6, -1.2]}
    names = [f"classical c{i:02d} a" for i in (1, 2, 3)]
    methods = {
        f"{name}, {method}, 20": {"final": {"mean": mean, "se": 0.01}}
        for method, means in logs.items()
        for name, mean in zip(names, means, strict=True)
    }
    result = {"methods": methods}
    head, row = tables.best_aim({"best-classical-random-x": result})
    assert head == ["problems", "after 20", "after 50", "after 100"]
    figure = 10 ** np.mean([-0.6, -0.5, 0.3])
    assert row[0] == "classical functions: all (3)"
    assert row[1].startswith(f"CMA-ES {digits(float(figure))} (")
    assert row[1].endswith(" ?; 1")  # one of three is lost
    assert row[2:] == ["", ""]
    assert tables._hardest(
        {"methods": {k: v for k, v in methods.items() if "CMA" not in k}}, names, "20"
    ).endswith(" ✓; 0")


def test_bbobs_own_groups_have_all_dimensions_and_each_function_once():
    problems = [f"bbob f{i:02d} i1 {dim}" for i in range(1, 25) for dim in ("2d", "5d")]
    groups = tables._by_dimension_and_kind(problems)
    kinds = [groups[kind] for kind in tables.KINDS]
    assert sorted(p for kind in kinds for p in kind) == sorted(problems)
    assert [len(kind) for kind in kinds] == [10, 8, 10, 10, 10]
