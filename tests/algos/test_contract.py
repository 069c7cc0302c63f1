"""What every method keeps to. A new one is a line of `PROPER`, or given as `--method MODULE:NAME`."""

import dataclasses
import functools
import importlib.util
import itertools
import math
import os
import re

import equinox as eqx
import jax
import jax.monitoring
import jax.numpy as jnp
import jax.random as jr
import jaxlib
import numpy as np
import pytest
from jax import export
from jax.sharding import Mesh
from jaxtyping import Array
from scipy import stats

import jaxbo
from jaxbo import metrics
from jaxbo.algos.base._origin import origin_of
from jaxbo.algos.base.algorithm import IN_ROUND, AbstractAlgorithm
from jaxbo.algos.base.federated import AbstractFederated, AbstractIndependent
from jaxbo.algos.cepe import CEPE
from jaxbo.algos.dec_hbo import DECHBO
from jaxbo.algos.dp_fts_de import DPFTSDE
from jaxbo.algos.dp_learned_prior import DPLearnedPrior
from jaxbo.algos.egp import EGP
from jaxbo.algos.exp3bo import EXP3BO
from jaxbo.algos.fts import FTS
from jaxbo.algos.learned_prior import LearnedPrior
from jaxbo.algos.random_search import RandomSearch
from jaxbo.algos.rgpe import RGPE
from jaxbo.algos.taf import TAF
from jaxbo.algos.ts import TS
from jaxbo.domains.base import Cube, Finite, Regions
from jaxbo.domains.parameters import Categorical, Integer, Real
from jaxbo.domains.space import Space
from jaxbo.kernels.additive.decomposed import Decomposed
from jaxbo.kernels.choosing.policy import EI, Thompson
from jaxbo.kernels.choosing.ranking import Ranked
from jaxbo.kernels.models.ensemble import Ensemble
from jaxbo.kernels.models.fitted import Exact, Fitted
from jaxbo.kernels.models.pooled import Pooled
from jaxbo.kernels.models.surrogate import Fixed
from jaxbo.kernels.processes.covariance import Matern32, SquaredExponential
from jaxbo.objectives.families import AbstractObjective
from jaxbo.objectives.functions import TestFunction, branin_rescaled, hartmann6, sphere
from jaxbo.privacy.mechanism import Mechanism, Poisson
from jaxbo.runs import _soon, _steps
from jaxbo.runs.compiled import run
from jaxbo.runs.driver import drive, replay
from jaxbo.runs.trace import Trace
from jaxbo.schedules import InverseSquare
from jaxbo.types import Scalar, floating

# One lot for all tests of a method, whether they compare bits or not: a process traces its steps once.
pytestmark = [
    pytest.mark.bitwise,
    pytest.mark.float64,
    pytest.mark.filterwarnings("ignore::jaxbo.SimulationWarning"),
]


def kernel(domain):
    return SquaredExponential(0.2 * domain.dim**0.5)  # of the cube's diagonal, 1 / 5


def fixed(domain):
    return Fixed(kernel(domain), size=60, noise=1e-3)


def fitted(domain, rounds):
    return Fitted(rounds, kernel(domain), size=60, noise=1e-3, refit_every=10)


def private(domain, agents):
    """Regions, a sample, a bound that is reached and noise that a federation of three can bear."""
    mechanism = Mechanism(0.2, 8.0, Poisson(0.8))
    regions = Regions.of(domain.dim, 2)
    return DPFTSDE(
        domain,
        agents,
        mechanism,
        regions=regions,
        releases=jnp.inf,
        features=fixed(domain),
        candidates=128,
    )


def private_prior(domain, agents, rounds):
    """Likewise; three releases."""
    mechanism = Mechanism(0.2, 2.0, Poisson(0.8))
    return DPLearnedPrior(
        domain, agents, rounds, mechanism=mechanism, features=fixed(domain), candidates=128
    )


def fts(domain, agents, **options):
    return FTS(domain, agents, features=fixed(domain), candidates=128, **options)


def grouped(domain, agents, rounds):
    """Two groups, whose features change with the first values."""
    smooth = Fixed(SquaredExponential(5.0 * domain.dim**0.5), size=60, noise=1e-3)
    options = {"features": [smooth, fixed(domain)], "candidates": 128}
    return LearnedPrior(domain, agents, rounds, groups=2, **options)


def ensemble(domain, evaluations, **options):
    """Two kernels."""
    kernels = kernel(domain), Matern32(0.4 * domain.dim**0.5)
    return Ensemble(kernels, Fitted(evaluations, size=60, noise=1e-3, **options))


def egp(domain, workers, rounds, policy, **options):
    """`workers` in the place of agents."""
    model = ensemble(domain, workers * (rounds + 1), **options)
    return EGP(domain, model, policy, workers, candidates=128)


def decomposed(domain, workers, rounds):
    """All pairs of variables, as good as can be on a coarse grid."""
    pairs = list(itertools.combinations(range(len(domain.axes(6).columns)), 2))
    room = workers * (rounds + 1)
    model = Decomposed(pairs, room, form=kernel(domain), grid=6, refit_every=None)
    return DECHBO(domain, model, workers=workers, candidates=64, iterations=10, steps=3)


def cepe(domain, agents, rounds, **options):
    """Explores in seven rounds of eight, the last of them too: what is best is looked up, not sought."""
    numbers = 0.88 * np.arange(1, rounds + 1)
    smooth = SquaredExponential(0.25 * domain.dim**0.5, 10.0)
    return CEPE(
        domain,
        agents,
        numbers,
        alpha=0.0,
        kernel=smooth,
        noise=1e-3,
        initial_capacity=4,
        candidates=128,
        **options,
    )


def transfer(kind, domain, agents, rounds, refit_every=None, **options):
    """The hyperparameters stay: fitting is that of `FTS, ranked peers`."""
    model = Fitted(
        rounds, kernel(domain), size=60, noise=1e-3, refit_every=refit_every, inference=Exact()
    )
    return kind(domain, agents, model, features=fixed(domain), candidates=64, **options)


def pooled_model(domain, rounds):
    """The agents' own, whose hyperparameters are those that all agree on."""
    return Fitted(rounds, kernel(domain), size=60, noise=1e-3, refit_every=None)


#: name -> (domain, agents, rounds) -> the algorithm; `rounds` counts all observations.
PROPER = {
    "TS": lambda d, n, t: TS(d, n, fixed(d), 128),
    "FTS": lambda d, n, t: fts(d, n),
    "DP-FTS-DE": lambda d, n, t: private(d, n),
    "EGP-TS": lambda d, n, t: egp(d, n, t, Thompson(), refit_every=None),
    "DEC-HBO": decomposed,
    "CEPE": lambda d, n, t: cepe(d, n, t),
    "RGPE": lambda d, n, t: transfer(RGPE, d, n, t, draws=20),
    "TAF": lambda d, n, t: transfer(TAF, d, n, t),
    "EXP3BO": lambda d, n, t: EXP3BO(d, ensemble(d, t, refit_every=None), candidates=128),
    "learned prior": lambda d, n, t: LearnedPrior(d, n, t, features=fixed(d), candidates=128),
    "private learned prior": lambda d, n, t: private_prior(d, n, t),
    # The last: the lists below have the others in the same places, so that tests of one method, which
    # share programs, come one after the other.
    "random search": lambda d, n, t: RandomSearch(d, n),
}
#: Other settings of them, for what must be true to the last bit.
SETTINGS = {
    "FTS, once": lambda d, n, t: fts(d, n, once=True),
    "FTS, ranked peers": lambda d, n, t: fts(d, n, own=fitted(d, t), peers=Ranked()),
    "FTS, one target": lambda d, n, t: fts(d, n, targets=1, mixing=InverseSquare()),
    "FTS, pooled": lambda d, n, t: fts(d, n, own=pooled_model(d, t), pooled=Pooled(16)),
    "learned prior, groups, features by evidence": lambda d, n, t: grouped(d, n, t),
    "learned prior, own units": lambda d, n, t: LearnedPrior(
        d, n, t, features=fixed(d), own_units=True, candidates=128
    ),
}
#: What a plateau misled: hyperparameters that are fitted, and a search that draws nothing.
MISLED = {
    "EGP, EI": lambda d, n, t: EGP(
        d, Fitted(n * (t + 1), kernel(d), size=60, inference=Exact()), EI(), n, candidates=128
    ),
    "EGP, Thompson, fitted": lambda d, n, t: EGP(
        d, Fitted(n * (t + 1), kernel(d), size=60), Thompson(), n, candidates=128
    ),
    "EGP, warped, EI": lambda d, n, t: EGP(
        d, Ensemble.warped(d.dim, n * (t + 1)), EI(), n, candidates=128
    ),
    "RGPE, fitted": lambda d, n, t: transfer(RGPE, d, n, t, refit_every=5, draws=20),
}


def given(name):
    """A method of one's own: a class made of domain and agents, or a function as those of `PROPER`."""
    module, _, attribute = name.partition(":")
    path = f"PYTHONPATH=FOLDER says which folder has {module}.py"
    assert importlib.util.find_spec(module.partition(".")[0]), f"No module {module}: {path}."
    make = getattr(importlib.import_module(module), attribute)
    return (lambda d, n, t: make(d, n)) if isinstance(make, type) else make


def test_a_module_that_is_not_found_is_named_with_the_remedy():
    with pytest.raises(AssertionError, match="No module nowhere: PYTHONPATH=FOLDER"):
        given("nowhere:Method")


OWN = os.environ.get("JAXBO_METHOD")
if OWN:
    SETTINGS, MISLED = {}, {}
    PROPER = {OWN: given(OWN), "random search": PROPER["random search"]}
METHODS = PROPER | SETTINGS


def cases(names, alike=()):
    """A parameter of each, with what is said of it: where it is compiled, and when it is tried.

    Those `alike` have what a test is about from a base that another method stands for. They are tried in
    full tests alone.
    """
    of_name = {"FTS": pytest.mark.users} | dict.fromkeys(SETTINGS, pytest.mark.full)
    of_name |= dict.fromkeys(MISLED, pytest.mark.long) | dict.fromkeys(alike, pytest.mark.full)
    return [pytest.param(n, marks=of_name[n]) if n in of_name else n for n in names]


HELD = [OWN] if OWN else list(PROPER)
#: Those that learn from what they observe.
LEARNING = [name for name in HELD if METHODS[name](Cube(2), 3, 35).learns]
#: Whose messages, keys and searches are those of RGPE, EGP-TS and the learned prior. One's own is tried.
ALIKE = [] if OWN else ["TAF", "EXP3BO", "private learned prior"]
#: RGPE has the loops and searches of FTS, and TS is FTS alone.
FTS_ALONE = [] if OWN else ["TS"]
LIKE_FTS = [] if OWN else ["RGPE", *FTS_ALONE]
#: Its rules for plateaus are those of FTS, and `test_maximize` has searches by regions.
ON_PLATEAUS_LIKE_FTS = [] if OWN else [*LIKE_FTS, "DP-FTS-DE"]
#: `test_cepe` compares its bits, with what is beyond the paper, and those of S-CEPE.
BITS_ELSEWHERE = [] if OWN else ["CEPE"]
#: Likewise over devices, where the noise of a release matters, and workers who share a model are alike.
ALIKE_OVER_DEVICES = [*ALIKE, *LIKE_FTS]
ALIKE_OVER_DEVICES += [] if OWN else ["DEC-HBO", "learned prior", "random search"]
#: One method stands for the statistics of all. That later queries are better than luck is tried of each.
ALIKE_IN_STATISTICS = [] if OWN else [name for name in LEARNING if name != "FTS"]
#: In float64 only what differs from method to method.
ALL = HELD if OWN or jax.config.jax_enable_x64 else [*HELD, *SETTINGS]

AGENTS, INITIAL = 3, 4
#: The last round is one in which `Fitted` fits.
ROUNDS = 31
ROWS = INITIAL + ROUNDS
CUBE = Cube(2)
FINITE = Finite(np.random.default_rng(0).random((97, 2)))
SPACE = Space(rate=Real(1e-4, 1.0, log=True), depth=Integer(1, 6), kind=Categorical("a", "b", "c"))
DOMAINS = {"cube": CUBE, "finite": FINITE, "space": SPACE}


#: What keeps bits, and costs time where none are compared; as users have it, it stays.
KEPT = "optimization_level" not in os.environ.get("XLA_FLAGS", "")
BEFORE_0_12 = jaxlib.version.__version_info__ < (0, 12)
ROUGHLY = {"xla_cpu_use_fusion_emitters": False} if BEFORE_0_12 else {}
ROUGHLY |= {"xla_cpu_parallel_codegen_split_count": 1, "xla_disable_hlo_passes": "constant_folding"}


def jit_at(level):
    """`jax.jit` at a level of optimization: a low one compiles sooner, to a slower program.

    What is not optimized is not as users have it in any case.
    """
    options = {"xla_backend_optimization_level": level} | ({} if KEPT and level else ROUGHLY)
    return functools.partial(jax.jit, compiler_options=options)


#: What has nothing to do with the precision, and takes long. That all can be traced is tried in either.
once = pytest.mark.skipif(jax.config.jax_enable_x64, reason="tried in float32")


@pytest.fixture(autouse=True, scope="module")
def no_key_is_used_twice():
    """An error, in all tests: what is traced under the check is not found without it.

    In all threads: `drive` compiles in one of its own, and would compile again.
    """
    before = jax.config.jax_debug_key_reuse
    jax.config.update("jax_debug_key_reuse", True)
    yield
    jax.config.update("jax_debug_key_reuse", before)


@pytest.fixture(scope="module", params=cases(ALL, ALIKE))
def name(request):
    return request.param


@pytest.fixture(scope="module")
def algorithm(name):
    return METHODS[name](CUBE, AGENTS, ROWS)


class Failing(AbstractObjective):
    """Every agent has `function`; a share of the evaluations fails."""

    function: TestFunction
    noise: Scalar = eqx.field(converter=floating, default=0.1)
    failing: Scalar = eqx.field(converter=floating, default=0.1)

    def noiseless(self, agent, x):
        return self.function(x)

    def optimum(self, agent):
        return self.function.maximum

    def __call__(self, key, agent, x):
        failure_key, noise_key = jr.split(key)
        value = self.noiseless(agent, x) + self.noise * jr.normal(noise_key, dtype=x.dtype)
        # Compilers may round the objective itself otherwise in `run` than in `drive`.
        value = jnp.round(value * 1024) / 1024
        return jnp.where(jr.uniform(failure_key) < self.failing, jnp.nan, value)


FUNCTIONS = {2: branin_rescaled(), 6: hartmann6()}
OBJECTIVE = Failing(FUNCTIONS[2])
RELIABLE = Failing(FUNCTIONS[2], 0.0, 0.0)


def seed():
    """The key of the runs below; a new array each time, since a key is used once."""
    return jr.key(1)


@functools.cache
def ran(name):
    return run(METHODS[name](CUBE, AGENTS, ROWS), OBJECTIVE, ROUNDS, seed(), initial=INITIAL)


@functools.cache
def driven(name):
    algorithm = METHODS[name](CUBE, AGENTS, ROWS)
    return drive(algorithm, OBJECTIVE, ROUNDS, seed(), initial=INITIAL, progress=False)


def raw(leaf):
    """An array's bytes, with one pattern for NaN."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jr.key_data(leaf)
    array = np.asarray(leaf)
    if np.issubdtype(array.dtype, np.floating):
        array = np.where(np.isnan(array), np.asarray(np.nan, array.dtype), array)
    return array.dtype, array.shape, array.tobytes()


def differences(one, other):
    """The leaves that are not equal bit for bit."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    pairs = zip(jax.tree.leaves_with_path(one), jax.tree.leaves(other), strict=True)
    return [jax.tree_util.keystr(path) for (path, a), b in pairs if raw(a) != raw(b)]


#: Sums of exponentials, which compilers round as they like.
ROUNDED = {"EXP3BO": [".gains"]}


def alike(name, state, other):
    """Equal bit for bit, but for what is rounded."""
    leaves = differences(state, other)
    if leaves == ROUNDED.get(name):
        np.testing.assert_allclose(state.gains, other.gains, rtol=1e-5)
        return True
    return leaves == []


def rows_of(tree, *numbers):
    """These rows of all arrays, on the host: nothing is compiled for them."""

    def of_leaf(leaf):
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return np.asarray(leaf)[list(numbers)]
        data = np.asarray(jr.key_data(leaf))[list(numbers)]
        return jr.wrap_key_data(data, impl=jr.key_impl(leaf))

    return jax.tree.map(of_leaf, tree)


def agent(state, *numbers):
    """The clients with these numbers."""
    if not hasattr(state, "clients"):
        pytest.skip("workers share one model")
    return rows_of(state.clients, *numbers)


@pytest.mark.skipif(bool(OWN), reason="another method is given")
def test_every_method_is_held_to_this():
    public = {m for m in vars(jaxbo).values() if isinstance(m, type)}
    methods = {m for m in public if issubclass(m, AbstractAlgorithm)}
    methods = {m for m in methods if not m.__name__.startswith("Abstract")}
    assert methods == {type(make(CUBE, AGENTS, ROWS)) for make in PROPER.values()}


# ---------------------------------------------------------------- shapes


@functools.cache
def of_domain(name, domain, agents):
    """A method there, and who is present in the tests: on a finite set nobody, if that can be said."""
    algorithm = METHODS[name](DOMAINS[domain], agents, ROWS)
    lost = isinstance(algorithm, AbstractFederated) and domain == "finite"
    return algorithm, jnp.zeros((agents,), bool) if lost else None


@pytest.mark.parametrize("name", cases(ALL), scope="module")
# `run` below scans those on a cube.
@pytest.mark.parametrize("domain", [pytest.param("finite", marks=pytest.mark.slow), "space"])
def test_rounds_can_be_scanned(name, domain):
    algorithm, present = of_domain(name, domain, AGENTS)

    def body(state, key):
        queries, info = _steps.ask(algorithm, key, state, present, jax.vmap)
        told = _steps.tell(algorithm, state, queries, queries[:, 0], IN_ROUND, jax.vmap)
        return told, (queries, info)

    def scanned(key):
        init_key, key = jr.split(key)
        return jax.lax.scan(body, _steps.init(algorithm, init_key, jax.vmap), jr.split(key, 5))

    state = jax.eval_shape(lambda key: _steps.init(algorithm, key, jax.vmap), jr.key(0))
    last, (queries, _) = jax.eval_shape(scanned, jr.key(0))
    assert queries.shape == (5, algorithm.targets, algorithm.domain.dim)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(
        lambda x: (x.shape, x.dtype), last
    )


@pytest.mark.slow
def test_a_run_lowers_for_every_platform_and_all_its_numbers_have_the_default_precision(algorithm):
    dtypes = []

    def whole(key):
        rounds = run(algorithm, OBJECTIVE, ROUNDS, key, initial=INITIAL)
        dtypes.extend(leaf.dtype for leaf in jax.tree.leaves(rounds))
        state, trace = rounds
        return trace, eqx.filter(state, eqx.is_inexact_array)

    platforms = ("cpu", "cuda", "tpu")
    exported = export.export(jax.jit(whole), platforms=platforms)(jr.key(0))
    assert exported.platforms == platforms
    assert exported.out_avals[0].shape == (ROWS, algorithm.targets, CUBE.dim)
    text = exported.mlir_module()
    assert "callback" not in text
    assert ("f64" in text) == jax.config.jax_enable_x64
    floats = [dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)]
    assert len(floats) >= 2
    assert set(floats) == {jnp.zeros(()).dtype}


# ---------------------------------------------------------------- one run, three ways


@pytest.mark.parametrize("name", cases(ALL, [*ALIKE, *LIKE_FTS, *BITS_ELSEWHERE]), scope="module")
@once
def test_run_equals_drive_bit_for_bit(name):
    state, trace = ran(name)
    driven_state, driven_trace = driven(name)
    assert np.isnan(trace.values).any()
    assert differences(trace, driven_trace) == []
    assert alike(name, state, driven_state)


@once
def test_replay_rebuilds_the_state(name, algorithm):
    state, trace = ran(name)
    assert alike(name, state, replay(algorithm, trace, seed()))


_COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: _COMPILED.append(event) if "backend_compile" in event else None
)


@pytest.mark.slow
@once
def test_other_numbers_compile_nothing(name, algorithm):
    plain = [k for k, leaf in jax.tree.leaves_with_path(algorithm) if not hasattr(leaf, "dtype")]
    fields = ", ".join(map(jax.tree_util.keystr, plain))
    assert plain == [], f"no arrays: {fields}. Say field(converter=jaxbo.types.floating)."
    # Not as they are remembered: programs may have been given up since.
    (_, trace), _ = ran.__wrapped__(name), driven.__wrapped__(name)
    other = jax.tree.map(lambda leaf: jnp.asarray(1.1 * np.asarray(leaf), leaf.dtype), algorithm)
    objective = Failing(FUNCTIONS[2], 0.2)
    key = jr.key(2)
    compiled = len(_COMPILED)
    assert compiled > 0
    _, other_trace = run(other, objective, ROUNDS, key, initial=INITIAL)
    drive(other, objective, ROUNDS, jr.key(2), initial=INITIAL, progress=False)
    # A number is a leaf of the method, of a type that is not weak (`jaxbo.types.floating`).
    assert _COMPILED[compiled:] == []
    assert differences(trace.values, other_trace.values) != []


class Careless(AbstractIndependent):
    """Uses a key twice."""

    domain: Cube
    agents: int = eqx.field(static=True)

    def join(self, key, shared, index):
        return ()

    def choose(self, key, shared, client, past, message, broadcast):
        return (self.domain.sample(key, 1)[0] + self.domain.sample(key, 1)[0]) / 2, ()

    def learn(self, shared, round, client, x, value):
        return client


def test_a_key_that_is_used_twice_would_be_noticed():
    # All runs of the methods here are made under the same check.
    with pytest.raises(jax.errors.KeyReuseError):
        run(Careless(CUBE, 2), OBJECTIVE, 2, jr.key(0))


@pytest.mark.slow
@once
def test_a_constant_added_to_all_values_changes_no_query_if_the_method_says_so(name, algorithm):
    _, trace = ran(name)
    # Sums that float32 holds: they are not rounded.
    moved = Trace(trace.queries, trace.values + 4096, trace.info, INITIAL)
    states = [replay(algorithm, t, seed()) for t in (trace, moved)]
    ask = _soon.compiled(_steps.ask)  # the program of `drive`
    one, other = (ask(algorithm, jr.key(3), state, None, jax.vmap)[0] for state in states)
    assert (origin_of(states[0]) is not None) == algorithm.invariant
    if algorithm.invariant:
        np.testing.assert_allclose(one, other, atol=2e-2)


# ---------------------------------------------------------------- agents beside each other


def with_values(trace, rows, number, value):
    values = np.array(trace.values)
    values[rows, number] = value
    return Trace(trace.queries, jnp.asarray(values), trace.info, trace.initial)


def beginning(trace, rows, initial=INITIAL):
    """The first rows."""
    queries, values = (jnp.asarray(np.asarray(a)[:rows]) for a in (trace.queries, trace.values))
    return Trace(queries, values, (), initial)


def assert_untaught(client, before):
    changed = ", ".join(differences(client, before))
    assert changed == "", f"learn took NaN, a failed evaluation, for an observation: {changed}."


def test_what_a_failed_evaluation_taught_is_named():
    with pytest.raises(AssertionError, match=r"failed evaluation, for an observation: \['best'\]"):
        assert_untaught(
            {"best": np.ones(2), "x": np.ones(2)}, {"best": np.zeros(2), "x": np.ones(2)}
        )


@once
def test_a_failed_evaluation_changes_nothing_but_where_the_agent_looks(name, algorithm):
    _, trace = ran(name)
    last = ROWS - 1
    number = algorithm.targets // 2
    others = [n for n in range(AGENTS) if n != number]
    # Better than all before: it must teach something.
    fine = with_values(trace, last, number, 2 + np.nanmax(trace.values))
    before = replay(algorithm, beginning(trace, last), seed())
    failed = replay(algorithm, with_values(trace, last, number, jnp.nan), seed())
    succeeded = replay(algorithm, fine, seed())
    assert_untaught(agent(failed, number), agent(before, number))
    assert differences(agent(failed, *others), agent(succeeded, *others)) == []
    assert differences(failed.shared, succeeded.shared) == []
    past = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), rows_of(failed.past, number))
    if algorithm.learns:
        assert np.isnan(past.y[np.argmax(past.order)])
    kept, theirs = (rows_of(state.past, *others) for state in (failed, succeeded))
    assert differences(kept, theirs) == []
    if algorithm.learns:
        assert differences(agent(succeeded, number), agent(before, number)) != []


@once
def test_a_failed_evaluation_is_nothing_to_what_others_do_later(name, algorithm):
    # One agent fails in a round, a second one in it, too, or not; then both succeed.
    if algorithm.targets < 2:
        pytest.skip("only one agent queries")
    _, trace = ran(name)
    short = beginning(trace, INITIAL + 2)
    short = dataclasses.replace(short, values=jnp.asarray(np.nan_to_num(short.values)))
    first = with_values(short, INITIAL, 0, jnp.nan)
    alone = replay(algorithm, first, seed())
    both = replay(algorithm, with_values(first, INITIAL, 1, jnp.nan), seed())
    assert differences(agent(alone, 0, 2), agent(both, 0, 2)) == []


@once
def test_initial_points_that_all_failed_teach_nothing_of_the_objective(name, algorithm):
    _, trace = ran(name)
    number = algorithm.targets // 2
    start = replay(algorithm, beginning(trace, 0, 0), seed())
    first = beginning(trace, INITIAL)
    failed = replay(algorithm, with_values(first, slice(INITIAL), number, jnp.nan), seed())
    assert_untaught(agent(failed, number), agent(start, number))


@once
def test_the_order_of_agents_does_not_matter(name, algorithm):
    if algorithm.targets < AGENTS:
        pytest.skip("the first agents are the ones that query")
    state, trace = ran(name)
    order = [2, 0, 1]
    start = replay(algorithm, beginning(trace, 0, 0), seed())
    moved = dataclasses.replace(start, clients=agent(start, 2, 0, 1))
    queries, values = (jnp.asarray(np.asarray(a)[:, order]) for a in (trace.queries, trace.values))
    shuffled = Trace(queries, values, (), INITIAL)
    last = replay(algorithm, shuffled, seed(), state=moved)
    assert differences(last.clients, agent(state, 2, 0, 1)) == []


def batched(program, *given):
    """Unchecked, where a loop over a batch of keys is taken for a second use. `ran` has no batch."""
    try:
        return program(*given)
    except jax.errors.KeyReuseError:
        with jax.debug_key_reuse(False):
            return program(*given)


@functools.cache
def one_round(name, domain, agents=AGENTS, seeds=32):
    """Queries of a round without observations, of many seeds."""
    algorithm, present = of_domain(name, domain, agents)

    def ask(key):
        init_key, ask_key = jr.split(key)
        state = _steps.init(algorithm, init_key, jax.vmap)
        return _steps.ask(algorithm, ask_key, state, present, jax.vmap)[0]

    return np.asarray(batched(jit_at(0)(jax.vmap(ask)), jr.split(jr.key(3), seeds)))


# Where all hear noise before anything is known, an agent's share of it depends on their number.
@pytest.mark.parametrize(
    "name", cases([n for n in ALL if n != "private learned prior"], ALIKE), scope="module"
)
@once
def test_draws_do_not_depend_on_how_many_agents_there_are(name):
    # Before anything is known all draw, if only from points that are equally good. What others send may
    # depend on who is there.
    few, many = (one_round(name, "finite", agents) for agents in (AGENTS, 7))
    equal = (few == many[:, : few.shape[1]]).all(axis=2)
    assert equal.size >= 8
    # Rounding may decide between two candidates with the same value.
    assert equal.mean() > 0.98
    assert len(np.unique(few.reshape(-1, 2), axis=0)) > 10


COLLECTIVES = (
    "all-reduce|all-gather|all-to-all|collective-permute|collective-broadcast|reduce-scatter"
)


def crossing(text):
    """Kind and shapes of all that leaves a device; XLA puts several arrays into one collective."""
    found = re.findall(rf"= (.*?) ({COLLECTIVES})(?:-start)?\(", text)
    assert len(found) == len(re.findall(rf" (?:{COLLECTIVES})(?:-start)?\(", text))
    return [
        (kind, tuple(int(n) for n in shape.split(",") if n))
        for shapes, kind in found
        for shape in re.findall(r"\w+\[([\d,]*)\]", shapes)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", cases(HELD, ALIKE_OVER_DEVICES), scope="module")
@once
def test_devices_change_nothing_and_hear_only_what_is_sent(name):
    agents = 24  # a number that no other axis has
    algorithm = METHODS[name](FINITE, agents, ROWS)
    mesh = Mesh(np.asarray(jax.devices()).reshape(4, 2), ("a", "b"))

    def whole(key, **options):
        state, trace = run(algorithm, OBJECTIVE, 3, key, initial=2, **options)
        return trace.queries, eqx.filter(state, eqx.is_inexact_array)

    compiled = jit_at(0)(functools.partial(whole, mesh=mesh)).lower(seed()).compile()
    queries, state = compiled(seed())
    expected, one = jit_at(0)(whole)(seed())
    np.testing.assert_array_equal(queries, expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3), state, one)
    sent = crossing(compiled.as_text())
    assert {kind for kind, _ in sent} <= {"all-reduce", "all-gather"}
    gathered = [math.prod(shape) for kind, shape in sent if kind == "all-gather"]
    if isinstance(algorithm, AbstractFederated):
        start = jax.eval_shape(algorithm.init, seed())
        messages = jax.eval_shape(algorithm.messages, seed(), start)
        # All hear all messages, or sums of which none has an axis of agents.
        # What is used of them, and whose can be.
        most = metrics.floats(messages) + agents if algorithm.gathers else 0
        assert sum(gathered) <= most
        if isinstance(algorithm, FTS):
            assert sum(gathered) == metrics.floats(messages)
        assert all(agents not in shape for kind, shape in sent if kind == "all-reduce")
    else:
        # What the workers were asked and observed, each row once and all of them at the end.
        assert sum(gathered) <= 2 * algorithm.targets * (FINITE.dim + 1) * 5


# ---------------------------------------------------------------- queries


inside = eqx.filter_jit(lambda domain, points: jax.vmap(domain.contains)(points))


def contained(domain, queries):
    return inside(domain, queries.reshape(-1, domain.dim)).all()


@once
def test_queries_are_in_a_cube_and_differ(name):
    _, trace = ran(name)
    queries = np.asarray(trace.queries).reshape(-1, CUBE.dim)
    assert contained(CUBE, queries)
    assert len(np.unique(queries, axis=0)) > len(queries) / 2


@pytest.mark.parametrize("name", cases(ALL, ALIKE), scope="module")
@once
def test_queries_are_among_a_finite_set(name):
    assert contained(FINITE, one_round(name, "finite"))


@pytest.mark.slow
@pytest.mark.parametrize("name", cases(HELD, [*ALIKE, *FTS_ALONE]), scope="module")
@once
def test_queries_are_in_a_space_with_rounded_integers_and_choices(name):
    queries = one_round(name, "space", seeds=12).reshape(-1, SPACE.dim)
    assert contained(SPACE, queries)
    for x in queries:
        # A round trip through the user's values comes back to the same point.
        np.testing.assert_allclose(SPACE.encode(SPACE.decode(x)), x, atol=1e-6)


# ---------------------------------------------------------------- it optimizes

#: In batches, of which one is enough to see what is plain.
SEEDS, BATCH = 96, 32


class Landscape(AbstractObjective):
    """Several objectives in one program: every agent has the one of this number."""

    function: TestFunction
    number: Array = eqx.field(converter=jnp.asarray)
    center: Array
    noise: Scalar = eqx.field(converter=floating, default=0.0)

    def noiseless(self, agent, x):
        # In units of the hill's own size.
        away = jnp.max(jnp.abs(x - self.center)) / (HILL ** (1 / x.size) / 2)
        aside = jnp.max(jnp.abs(x - (self.center + 0.5) % 1)) / (HILL ** (1 / x.size) / 2)
        distance = jnp.sum((x - 0.8) ** 2)
        shapes = (
            self.function(x),
            jnp.where(away <= 1, 1.0, 0.2),
            jnp.where(x[0] > 0.6, jnp.nan, -distance),
            1 - jnp.clip(jnp.ceil(away) - 1, 0, 4) / 5,
            jnp.where(away <= 1, 1.0, jnp.where(aside <= 1.6, 0.5, 0.2)),
        )
        return jnp.stack(shapes)[self.number]

    def optimum(self, agent):
        return self.function.maximum

    def __call__(self, key, agent, x):
        return jnp.round(self.noiseless(agent, x) * 1024) / 1024


#: The objectives of a `Landscape`, and the hill's share of the cube.
FUNCTION, PLATEAU, BORDER, STEPS, DECOY = range(5)
HILL = 0.02


@functools.cache
def program(name, dim):
    algorithm = (METHODS | MISLED)[name](Cube(dim), AGENTS, ROWS)

    def one(key, number):
        side = HILL ** (1 / dim)
        center = side / 2 + (1 - side) * jr.uniform(jr.fold_in(key, 1), (dim,))
        landscape = Landscape(FUNCTIONS.get(dim) or sphere(dim), number, center)
        trace = run(algorithm, landscape, ROUNDS, key, initial=INITIAL)[1]
        return trace.queries, trace.values

    return jit_at(1)(jax.vmap(one, (0, None)))


@functools.cache
def batch_of_runs(name, dim, number, batch):
    keys = jr.split(jr.key(4), (SEEDS // BATCH, BATCH))
    return batched(program(name, dim), keys[batch], number)


def many_runs(name, dim, number=FUNCTION, batches=SEEDS // BATCH):
    """Queries and values of many seeds, each with `AGENTS` agents that have the same function."""
    of_batches = [batch_of_runs(name, dim, number, i) for i in range(batches)]
    return [np.concatenate(arrays) for arrays in zip(*of_batches, strict=True)]


of_points = jax.jit(jax.vmap(FUNCTIONS[2]))


@pytest.mark.skipif(bool(OWN), reason="it may explore to the end")
@pytest.mark.parametrize("name", cases([n for n in LEARNING if n != "CEPE"], ALIKE), scope="module")
@once
def test_later_queries_are_better_than_any_luck(name):
    _, trace = ran(name)
    last = np.asarray(trace.queries[-10:]).reshape(-1, 2)
    points = np.random.default_rng(0).random((1000, *last.shape), last.dtype)
    values = of_points(jnp.concatenate([points.reshape(-1, 2), last]))
    *random, mine = np.asarray(values).reshape(-1, len(last)).mean(axis=1)
    assert mine > max(random)


@pytest.mark.slow
@pytest.mark.parametrize("name", cases(LEARNING, ALIKE_IN_STATISTICS), scope="module")
def test_it_beats_random_search(name):
    assert_beats_random_search(name, 2)


@pytest.mark.full
@pytest.mark.skipif(bool(OWN), reason="another method is given")
@once
def test_it_beats_random_search_in_six_dimensions():
    assert_beats_random_search("FTS", 6)


def assert_beats_random_search(name, dim):
    def regret(name):
        best = np.max(many_runs(name, dim)[1], axis=1)  # of each seed and target
        return np.mean(float(FUNCTIONS[dim].maximum) - best, axis=1)

    mine, random = regret(name), regret("random search")
    assert np.mean(mine) < np.mean(random)
    assert stats.wilcoxon(mine, random, alternative="less").pvalue < 1e-3


#: Flat shapes, and in how many dimensions; the hill of a square is for all tests.
FLAT = {
    "hill": (PLATEAU, 2),
    **{f"hill in {dim}": (PLATEAU, dim) for dim in (4, 8)},
    **{f"steps in {dim}": (STEPS, dim) for dim in (2, 4, 8)},
    "decoy": (DECOY, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", cases([*LEARNING, *MISLED], [*ALIKE, *ON_PLATEAUS_LIKE_FTS]), scope="module"
)
@pytest.mark.parametrize(
    "flat",
    [name if name == "hill" else pytest.param(name, marks=pytest.mark.long) for name in FLAT],
)
@once
def test_a_hill_on_a_plateau_is_found_no_later_than_at_random(name, flat):
    number, dim = FLAT[flat]

    def found(name):
        """Whether each target has by the end."""
        return np.any(many_runs(name, dim, number)[1] > 0.9, axis=1)

    mine, random = found(name), found("random search")
    assert 0.3 < random.mean() < 0.7
    # Two standard errors of the difference, beside a tenth; a seed's agents have the same hill.
    seeds = mine.mean(axis=1), random.mean(axis=1)
    error = np.sqrt(sum(np.var(one, ddof=1) / one.size for one in seeds))
    assert mine.mean() > 0.9 * random.mean() - 2 * error


@pytest.mark.slow
@pytest.mark.parametrize("name", cases([*LEARNING, *MISLED], [*ALIKE, *LIKE_FTS]), scope="module")
@once
def test_places_where_evaluations_fail_are_avoided(name):
    def failed(name):
        return np.isnan(many_runs(name, 2, BORDER, batches=1)[1][:, INITIAL + 10 :]).mean()

    assert 0.35 < failed("random search") < 0.45
    assert failed(name) < 0.15


@pytest.mark.slow
@pytest.mark.parametrize("name", cases(HELD, [*ALIKE, *LIKE_FTS]), scope="module")
@once
def test_seeds_in_a_batch_are_the_runs_of_these_seeds(name):
    algorithm = METHODS[name](CUBE, AGENTS, ROWS)
    together, _ = many_runs(name, 2, batches=1)
    first = INITIAL + 1  # later rounds amplify rounding errors
    for i in range(8):
        key = jr.split(jr.key(4), (SEEDS // BATCH, BATCH))[0, i]
        _, alone = run(algorithm, RELIABLE, ROUNDS, key, initial=INITIAL)
        queries = np.asarray(alone.queries)
        np.testing.assert_array_equal(queries[:INITIAL], together[i, :INITIAL])
        np.testing.assert_allclose(
            queries[:first], together[i, :first], atol=2e-3, err_msg=f"seed {i}"
        )
