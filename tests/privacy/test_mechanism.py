import equinox as eqx
import jax
import jax.export
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxbo.privacy.mechanism import (
    AdaptiveClip,
    FixedSize,
    Mechanism,
    Poisson,
    Relation,
    Weighting,
    clip,
    region_weights,
)

pytestmark = [pytest.mark.users, pytest.mark.float64]

AGENTS, FEATURES, REGIONS = 12, 7, 3
ALL = jnp.ones(AGENTS, bool)
NONE = jnp.zeros(AGENTS, bool)


def dtype():
    return jnp.zeros(()).dtype


def rtol(float32=2e-6, float64=1e-13):
    return float32 if dtype() == jnp.float32 else float64


def messages(seed=0, scale=1.0):
    return jnp.asarray(scale * np.random.default_rng(seed).normal(size=(AGENTS, FEATURES)), dtype())


def weights(seed=1):
    drawn = np.random.default_rng(seed).gamma(0.5, size=(REGIONS, AGENTS))
    return jnp.asarray(drawn / drawn.sum(1, keepdims=True), dtype())


def silent(q=1.0, S=1.0, exact=False):
    return Mechanism(0.0, S, Poisson(q), exact)


@eqx.filter_jit
def send(mechanism, key, data, W, present):
    """A release, compiled once for all mechanisms of a kind."""
    return mechanism.release(key, data, W, present)


@eqx.filter_jit
def send_many(mechanism, keys, data, W, present):
    return jax.vmap(lambda key: mechanism.release(key, data, W, present))(keys)


included = eqx.filter_jit(Mechanism.included)
adapted = eqx.filter_jit(AdaptiveClip.release)
drawn_by = eqx.filter_jit(lambda sampling, key, agents=AGENTS: sampling.draw(key, agents))
all_drawn_by = eqx.filter_jit(
    lambda sampling, keys: jax.vmap(lambda key: sampling.draw(key, AGENTS))(keys)
)
weighted = eqx.filter_jit(lambda weighting, *given: weighting(*given))
of_regions = eqx.filter_jit(region_weights)


def draws(mechanism, key, count, W=None, data=None, present=ALL):
    """`count` releases with different keys."""
    W = weights() if W is None else W
    data = messages() if data is None else data
    return np.asarray(send_many(mechanism, jr.split(key, count), data, W, present), np.float64)


# ------------------------------------------------------------------------------------ the sum


def test_no_clipping_no_noise_and_everyone_drawn_is_the_plain_mean(key):
    W = jnp.full((1, AGENTS), 1 / AGENTS, dtype())
    mean = send(silent(S=jnp.inf), key, messages(), W, ALL)
    np.testing.assert_allclose(mean[0], np.mean(messages(), axis=0), atol=1e-6)


@pytest.mark.parametrize("sampling", [Poisson(0.4), FixedSize(5, AGENTS)])
def test_a_release_is_the_papers_sum_over_the_sample_written_as_loops(key, sampling):
    S, W, data = 2.5, np.asarray(weights(), np.float64), np.asarray(messages(), np.float64)
    mechanism = Mechanism(0.0, S, sampling)
    sample = np.asarray(included(mechanism, key, messages(), ALL))
    assert sample.any()
    expected = np.zeros((REGIONS, FEATURES))
    for i in range(REGIONS):
        for n in np.flatnonzero(sample):
            short = data[n] / max(1, np.linalg.norm(data[n]) / (S / np.sqrt(REGIONS)))
            expected[i] += W[i, n] / float(sampling.q) * short
    released = send(mechanism, key, messages(), weights(), ALL)
    np.testing.assert_allclose(released, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_mean_over_samples_is_the_full_sum_of_clipped_messages(key):
    released = draws(silent(q=0.3), key, 20_000)
    full = np.asarray(send(silent(), key, messages(), weights(), ALL))
    error = released.std(axis=0) / np.sqrt(len(released))
    assert np.all(np.abs(released.mean(axis=0) - full) < 5 * error + 1e-6)


@pytest.mark.parametrize("bound", [0.3, 1.0, 50.0])
def test_clipping_keeps_the_direction_and_shortens_only_what_is_longer(bound):
    data = messages(scale=2.0)
    every = jax.jit(jax.vmap(clip, (0, None)))(data, jnp.asarray(bound, dtype()))
    for w, clipped in zip(np.asarray(data), np.asarray(every), strict=True):
        length = np.linalg.norm(np.asarray(w, np.float64))
        if length <= bound:
            np.testing.assert_array_equal(clipped, w)
        else:
            np.testing.assert_allclose(clipped, np.asarray(w) * bound / length, rtol=rtol(1e-5))


def test_clipping_holds_for_the_longest_and_the_shortest_vectors():
    limits = jnp.finfo(dtype())
    bound = jnp.asarray(2.0, dtype())
    long = jnp.full(5, limits.max**0.45, dtype()).at[0].multiply(-1)
    np.testing.assert_allclose(np.linalg.norm(clip(long, bound)), 2, rtol=rtol())
    assert float(clip(long, bound)[0]) < 0
    np.testing.assert_array_equal(clip(jnp.full(5, limits.max, dtype()), bound), 0)
    tiny = jnp.full(4, 4 * limits.tiny, dtype())
    np.testing.assert_array_equal(clip(tiny, bound), tiny)
    np.testing.assert_array_equal(clip(jnp.zeros(3, dtype()), bound), 0)
    np.testing.assert_array_equal(clip(long, jnp.asarray(jnp.inf, dtype())), long)


def test_clipped_marks_the_messages_that_are_shortened():
    data = messages().at[3].multiply(100.0)
    mechanism = Mechanism(1.0, 8.0, Poisson(0.5))
    lengths = np.linalg.norm(np.asarray(data), axis=1)
    marked = mechanism.clipped(data, REGIONS)
    np.testing.assert_array_equal(marked, lengths > 8 / np.sqrt(REGIONS))
    assert marked[3]
    assert not marked.all()


# ---------------------------------------------------------------------------------- the noise


@pytest.mark.parametrize(("z", "S", "q"), [(1.0, 11.0, 0.25), (2.5, 0.4, 0.9)])
@pytest.mark.parametrize("exact", [False, True])
def test_the_noise_has_the_stated_deviation_in_every_entry_and_none_is_shared(key, z, S, q, exact):
    mechanism = Mechanism(z, S, Poisson(q), exact)
    W = np.asarray(weights(), np.float64)
    joint = np.max(np.linalg.norm(W, axis=0)) / np.sqrt(REGIONS) if exact else W.max()
    released = draws(mechanism, key, 20_000, present=NONE) / (z * joint * S / q)
    np.testing.assert_allclose(mechanism.deviation(weights()), z * joint * S / q, rtol=1e-5)
    flat = released.reshape(len(released), -1)
    np.testing.assert_allclose(np.cov(flat.T), np.eye(flat.shape[1]), atol=6 / np.sqrt(20_000))
    np.testing.assert_allclose(flat.mean(axis=0), 0, atol=5 / np.sqrt(20_000))


def test_an_empty_sample_gives_the_same_pure_noise_whatever_was_sent(key):
    mechanism = Mechanism(1.5, 2.0, Poisson(0.5))
    first = send(mechanism, key, messages(0), weights(), NONE)
    second = send(mechanism, key, messages(5), weights(), NONE)
    np.testing.assert_array_equal(first, second)
    assert np.all(np.asarray(first) != 0)


def test_the_noise_does_not_depend_on_the_sample_or_the_messages(key):
    loud, quiet = Mechanism(1.5, 2.0, Poisson(0.5)), silent(0.5, 2.0)
    noise = [
        np.asarray(send(loud, key, data, weights(), present))
        - np.asarray(send(quiet, key, data, weights(), present))
        for data, present in [(messages(0), ALL), (messages(9), NONE), (messages(3), ALL)]
    ]
    np.testing.assert_allclose(noise[0], noise[1], atol=2e-6)
    np.testing.assert_allclose(noise[2], noise[1], atol=2e-6)


# ---------------------------------------------------------------------------- the sensitivity


@given(
    seed=st.integers(0, 10_000),
    S=st.floats(0.125, 32, width=32),
    q=st.floats(0.0625, 1, width=32),
    scale=st.floats(0.0078125, 1024, width=32),
    exact=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_one_agent_moves_the_sum_by_at_most_the_sensitivity(seed, S, q, scale, exact):
    mechanism, key, W = Mechanism(0.0, S, Poisson(q), exact), jr.key(seed), weights(seed)
    data = messages(seed, scale)
    with_it = np.asarray(send(mechanism, key, data, W, ALL), np.float64)
    agent = seed % AGENTS
    without = np.asarray(send(mechanism, key, data, W, ALL.at[agent].set(False)), np.float64)
    swapped = data.at[agent].set(-data[(agent + 1) % AGENTS] * 3)
    other = np.asarray(send(mechanism, key, swapped, W, ALL), np.float64)
    bound, rounding = float(mechanism.sensitivity(W)), 1e-5 * np.abs(with_it).max()
    assert np.linalg.norm(with_it - without) <= bound * (1 + 1e-5) + rounding
    assert np.linalg.norm(with_it - other) <= 2 * bound * (1 + 1e-5) + rounding


def moved(W, exact, S=3.0, q=0.25):
    """How far the agent that moves the sum most does so, and the stated sensitivity."""
    mechanism = Mechanism(0.0, S, Poisson(1.0), exact)
    data, key = messages(scale=100.0), jr.key(0)
    full = send(mechanism, key, data, W, ALL)
    alone = [send(mechanism, key, data, W, ALL.at[n].set(False)) for n in range(AGENTS)]
    stated = Mechanism(0.0, S, Poisson(q), exact).sensitivity(W)
    return max(np.linalg.norm(np.asarray(full - a)) for a in alone) / q, float(stated)


def test_the_sensitivity_is_reached_by_an_agent_that_counts_fully_everywhere():
    reached, stated = moved(jnp.full((REGIONS, AGENTS), 1 / AGENTS, dtype()), exact=False)
    assert reached == pytest.approx(stated, rel=1e-4)


def test_the_exact_sensitivity_is_reached_by_any_weights():
    reached, stated = moved(weights(), exact=True)
    assert reached == pytest.approx(stated, rel=1e-4)


def test_with_agents_in_one_region_each_the_exact_sensitivity_is_less_by_a_square_root():
    W = of_regions(
        jnp.asarray(np.arange(AGENTS) % REGIONS), REGIONS, jnp.ones(()), jnp.asarray(60.0)
    )
    paper, exact = (Mechanism(1.0, 3.0, Poisson(0.5), e).deviation(W) for e in (False, True))
    np.testing.assert_allclose(paper / exact, np.sqrt(REGIONS), rtol=1e-5)


# ----------------------------------------------------------------- who is drawn, who is absent


@pytest.mark.slow
@pytest.mark.parametrize("q", [0.05, 0.35, 0.9])
def test_poisson_sampling_draws_each_agent_by_itself_with_probability_q(key, q):
    count = 40_000
    drawn = np.asarray(all_drawn_by(Poisson(q), jr.split(key, count)), np.float64)
    assert np.all(np.abs(drawn.mean(0) - q) < 5 * np.sqrt(q * (1 - q) / count))
    correlation = np.corrcoef(drawn.T)[~np.eye(AGENTS, dtype=bool)]
    assert np.abs(correlation).max() < 5 / np.sqrt(count)
    sizes = drawn.sum(1)
    assert np.var(sizes) == pytest.approx(AGENTS * q * (1 - q), rel=0.05)


def test_everyone_is_drawn_with_probability_one(key):
    assert np.asarray(drawn_by(Poisson(1.0), key, 1000)).all()


def test_a_small_probability_is_drawn_as_rarely_as_it_says(key):
    agents, q = 1 << 18, 2.0**-12
    drawn = int(np.asarray(drawn_by(Poisson(q), key, agents)).sum())
    assert abs(drawn - agents * q) <= 5 * np.sqrt(agents * q)
    # Below the resolution of the draw: never, in place of too often.
    assert not np.asarray(drawn_by(Poisson(2.0**-33), key, agents)).any()


@pytest.mark.slow
def test_a_fixed_size_is_that_size_and_treats_agents_alike(key):
    count = 20_000
    sampling = FixedSize(5, AGENTS)
    drawn = np.asarray(all_drawn_by(sampling, jr.split(key, count)))
    np.testing.assert_array_equal(drawn.sum(1), 5)
    q = 5 / AGENTS
    np.testing.assert_allclose(sampling.q, q, rtol=rtol(1e-6))
    error = 5 * np.sqrt(q * (1 - q) / count)
    assert np.all(np.abs(np.asarray(drawn, np.float64).mean(0) - q) < error)
    pairs = np.asarray(drawn, np.float64).T @ np.asarray(drawn, np.float64) / count
    both = 5 * 4 / (AGENTS * (AGENTS - 1))
    assert np.abs(pairs[~np.eye(AGENTS, dtype=bool)] - both).max() < 0.02


@pytest.mark.parametrize("sampling", [Poisson(0.6), FixedSize(7, AGENTS)])
def test_an_absent_agent_is_never_included_and_changes_nobody_elses_draw(key, sampling):
    mechanism = Mechanism(0.0, 1.0, sampling)
    present = jnp.asarray(~np.isin(np.arange(AGENTS), [0, 4, 5]))
    for one in jr.split(key, 30):
        everyone = np.asarray(included(mechanism, one, messages(), ALL))
        some = np.asarray(included(mechanism, one, messages(), present))
        np.testing.assert_array_equal(some, everyone & np.asarray(present))


@pytest.mark.parametrize("sampling", [Poisson(0.6), FixedSize(7, AGENTS)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_message_that_is_not_finite_counts_as_absent_to_the_bit(key, sampling, bad):
    mechanism = Mechanism(1.0, 2.0, sampling)
    broken = messages().at[2, 3].set(bad)
    released = send(mechanism, key, broken, weights(), ALL)
    without = send(mechanism, key, messages(), weights(), ALL.at[2].set(False))
    np.testing.assert_array_equal(released, without)
    assert np.isfinite(released).all()


def test_what_an_absent_agent_would_have_sent_leaves_no_mark(key):
    mechanism, present = Mechanism(1.0, 2.0, Poisson(0.9)), ALL.at[1].set(False)
    first = send(mechanism, key, messages(), weights(), present)
    second = send(mechanism, key, messages().at[1].set(1e6), weights(), present)
    np.testing.assert_array_equal(first, second)


def test_a_draw_does_not_depend_on_how_many_agents_there_are(key):
    few, many = (drawn_by(Poisson(0.5), key, agents) for agents in (20, 50))
    np.testing.assert_array_equal(few, many[:20])


def test_each_sampling_names_the_relation_that_its_amplification_is_known_for():
    assert Poisson(0.5).relation is Relation.ZERO_OUT
    assert FixedSize(2, 4).relation is Relation.REPLACE


# --------------------------------------------------------------------- compiled, swept, exported


def test_a_sweep_over_noise_sampling_and_bound_is_one_vmapped_program(key):
    z, S, q = (jnp.asarray(v, dtype()) for v in ([0.5, 1.0, 2.0], [1.0, 2.0, 3.0], [0.3, 0.6, 1.0]))

    def release(z, S, q):
        return Mechanism(z, S, Poisson(q)).release(key, messages(), weights(), ALL)

    swept = jax.jit(jax.vmap(release))(z, S, q)
    for found, *numbers in zip(swept, *map(np.asarray, (z, S, q)), strict=True):
        alone = send(Mechanism(*numbers[:2], Poisson(numbers[2])), key, messages(), weights(), ALL)
        np.testing.assert_allclose(found, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_numbers_are_leaves_so_that_other_ones_do_not_retrace(key):
    traces = []

    @eqx.filter_jit
    def release(mechanism):
        traces.append(1)
        return mechanism.release(key, messages(), weights(), ALL)

    for z, S, q in [(1.0, 2.0, 0.5), (2.0, 3.0, 0.25)]:
        release(Mechanism(z, S, Poisson(q)))
    for count in (3, 4):
        release(Mechanism(1.0, 2.0, FixedSize(count, AGENTS)))
    assert len(traces) == 2


@pytest.mark.parametrize("sampling", [Poisson(0.4), FixedSize(5, AGENTS)])
@pytest.mark.parametrize("exact", [False, True])
def test_a_release_is_exported_for_every_platform(key, sampling, exact):
    mechanism = Mechanism(1.0, 2.0, sampling, exact)

    def program(data, W, present):
        return mechanism.release(key, data, W, present)

    platforms = ("cpu", "cuda", "tpu")
    exported = jax.export.export(jax.jit(program), platforms=platforms)(messages(), weights(), ALL)
    assert exported.platforms == platforms


def test_float32_messages_give_a_float32_broadcast(key):
    mechanism = Mechanism(1.0, 2.0, Poisson(0.4))
    data, W = messages().astype(jnp.float32), weights().astype(jnp.float32)
    assert send(mechanism, key, data, W, ALL).dtype == jnp.float32


@pytest.mark.parametrize("sampling", [Poisson(0.4), FixedSize(5, AGENTS)])
def test_no_key_is_used_twice(key, sampling):
    with jax.debug_key_reuse(True):
        release = eqx.filter_jit(Mechanism(1.0, 2.0, sampling).release)
        release(key, messages(), weights(), ALL)


# ------------------------------------------------------------------------------------ weights


def test_region_weights_are_the_papers_softmax():
    a, T, assigned = 15.0, 2.5, np.array([0, 1, 1, 2, 0, 2, 2])
    expected = np.zeros((3, len(assigned)))
    for i in range(3):
        expected[i] = np.exp((a * (assigned == i) + 1) / T)
        expected[i] /= expected[i].sum()
    actual = of_regions(jnp.asarray(assigned), 3, jnp.asarray(T), jnp.asarray(a))
    np.testing.assert_allclose(actual, expected, rtol=rtol(5e-6))
    np.testing.assert_allclose(actual.sum(axis=1), 1, rtol=rtol())


def schedule(weighting, rounds):
    """a_t of the paper for each round."""
    rounds = jnp.asarray(rounds)
    temperature = eqx.filter_jit(lambda w, rounds: jax.vmap(w.temperature)(rounds))
    temperature = np.asarray(temperature(weighting, rounds), np.float64)
    return 1 + float(weighting.emphasis) / temperature


def test_the_default_schedule_is_the_papers_for_synthetic_experiments():
    expected = [16] * 5 + [16, 12.25, 8.5, 4.75, 1] + [1] * 3
    np.testing.assert_allclose(schedule(Weighting(), range(1, 14)), expected, rtol=rtol())


def test_the_schedule_of_the_real_experiments_ends_after_forty_rounds():
    a = schedule(Weighting(hold=10.0, decay=30.0), range(1, 60))
    np.testing.assert_allclose(a[:10], 16, rtol=rtol())
    np.testing.assert_allclose(a[10:40], np.linspace(16, 1, 30), rtol=rtol(1e-5))
    np.testing.assert_allclose(a[40:], 1, rtol=rtol())


def test_weights_follow_the_authors_form_and_become_uniform():
    assigned = jnp.asarray([0, 0, 1, 1, 1])
    for t, a in [(1, 16.0), (7, 12.25), (9, 4.75), (10, 1.0), (99, 1.0)]:
        score = np.where(np.asarray(assigned)[None] == np.arange(2)[:, None], np.exp(a), np.e)
        expected = score / score.sum(1, keepdims=True)
        actual = weighted(Weighting(), jnp.asarray(t), assigned, 2)
        np.testing.assert_allclose(actual, expected, rtol=rtol(2e-5, 1e-12))


def test_an_infinite_hold_never_changes_and_no_emphasis_counts_all_alike():
    assigned = jnp.asarray([0, 0, 1, 1, 1])
    fixed = Weighting(hold=jnp.inf)
    first, last = (weighted(fixed, jnp.asarray(t), assigned, 2) for t in (1, 1000))
    np.testing.assert_array_equal(first, last)
    assert float(first[0, 0]) > 0.49
    alike = weighted(Weighting(0.0), jnp.asarray(1), assigned, 2)
    np.testing.assert_allclose(alike, 0.2, rtol=rtol())


def test_a_region_that_nobody_explores_counts_all_alike():
    W = of_regions(jnp.zeros(4, int), 2, jnp.ones(()), jnp.asarray(15.0))
    np.testing.assert_allclose(W[1], 0.25)


# ------------------------------------------------------------------------------ adaptive clipping


@pytest.mark.slow
def test_adaptive_clipping_finds_the_quantile_of_the_norms(key):
    agents, quantile, regions = 2000, 0.8, 4
    data = jr.normal(key, (agents, 3)) * jnp.exp(0.5 * jr.normal(jr.fold_in(key, 1), (agents, 1)))
    adaptive = AdaptiveClip(1.0, Poisson(0.3), quantile)
    here = jnp.ones(agents, bool)

    def step(S, k):
        S = adaptive.release(k, S, data, regions, here)
        return S, S

    _, path = jax.jit(lambda S, keys: jax.lax.scan(step, S, keys))(
        jnp.asarray(0.01, dtype()), jr.split(key, 400)
    )
    bounds = np.asarray(path)[-100:] / np.sqrt(regions)
    share = np.mean(np.linalg.norm(data, axis=1)[:, None] <= bounds[None])
    assert share == pytest.approx(quantile, abs=0.03)


def test_one_agent_moves_the_adaptive_share_by_the_sensitivity_of_its_mechanism(key):
    adaptive = AdaptiveClip(1.0, Poisson(0.5), quantile=0.5, rate=1.0)
    silenced = eqx.tree_at(lambda a: (a.mechanism.z, a.mechanism.sampling.probability), adaptive, (
        jnp.zeros((), dtype()), jnp.ones((), dtype())
    ))  # fmt: skip
    S = jnp.ones((), dtype())
    full = adapted(silenced, key, S, messages(), 1, ALL)
    without = adapted(silenced, key, S, messages(), 1, ALL.at[0].set(False))
    uniform = jnp.full((1, AGENTS), 1 / AGENTS, dtype())
    stated = float(silenced.mechanism.sensitivity(uniform))
    assert abs(np.log(full) - np.log(without)) == pytest.approx(stated, rel=1e-4)
    assert stated == pytest.approx(0.5 / AGENTS, rel=1e-5)


def test_adaptive_clipping_treats_a_message_that_is_not_finite_as_absent(key):
    adaptive = AdaptiveClip(0.5, Poisson(0.9))
    S = jnp.ones((), dtype())
    broken = adapted(adaptive, key, S, messages().at[2].set(jnp.nan), 2, ALL)
    without = adapted(adaptive, key, S, messages(), 2, ALL.at[2].set(False))
    assert float(broken) == float(without)


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("q", [0.0, -0.1, 1.1, np.nan])
def test_a_probability_outside_the_half_open_interval_is_refused(q):
    with pytest.raises(ValueError, match="q must lie in"):
        Poisson(q)


@pytest.mark.parametrize(("count", "agents"), [(0, 5), (6, 5), (2.5, 5), (1, 0)])
def test_a_fixed_size_that_cannot_be_drawn_is_refused(count, agents):
    with pytest.raises((ValueError, TypeError)):
        FixedSize(count, agents)


def test_a_fixed_size_refuses_messages_of_another_number_of_agents(key):
    with pytest.raises(ValueError, match="a row too"):
        Mechanism(1.0, 1.0, FixedSize(2, 5)).release(key, messages(), weights(), ALL)


@pytest.mark.parametrize(
    ("z", "S"),
    [(-1.0, 1.0), (np.nan, 1.0), (np.inf, 1.0), (1.0, 0.0), (1.0, np.nan), (1.0, np.inf)],
)
def test_noise_and_bounds_that_mean_nothing_are_refused(z, S):
    with pytest.raises(ValueError, match="must be"):
        Mechanism(z, S, Poisson(0.5))


@pytest.mark.parametrize("numbers", [(-1.0, 5.0, 5.0), (15.0, -1.0, 5.0), (15.0, 5.0, 0.0)])
def test_a_schedule_of_negative_numbers_is_refused(numbers):
    with pytest.raises(ValueError, match="must be"):
        Weighting(*numbers)


@pytest.mark.parametrize(("quantile", "rate"), [(0.0, 0.2), (1.0, 0.2), (0.5, 0.0)])
def test_an_adaptive_bound_without_a_quantile_or_a_rate_is_refused(quantile, rate):
    with pytest.raises(ValueError, match="must"):
        AdaptiveClip(1.0, Poisson(0.5), quantile, rate)
