"""The loss by features: the weights of an ensemble and its variance, beside the exact process.

    w_m ∝ evidence of kernel m, on 2 D features or exact        total variation between the two
    variance of f at random points, on features / exact          1 is what it should be

The paper's dictionary; random points of drop-wave. First with length scales of 0.3 and nothing fitted,
then as the methods do it: hyperparameters of maximum (exact) evidence, within the same bounds. Once
there are more observations than features can tell apart, a model on features is sure without knowing:
samples of it no longer explore. A sample corrected through the data (`Exact`) keeps its variance.
"""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from bench.claims import Check, below, on_average, worst
from bench.common.text import number
from bench.egp.methods import papers
from bench.runner import Experiment, Options, Result, progress
from jaxbo import metrics, plotting
from jaxbo.kernels.models.ensemble import Ensemble, Experts
from jaxbo.kernels.models.fitted import AbstractInference, Exact, Fitted, FittedBelief, OnFeatures
from jaxbo.objectives import functions
from jaxbo.types import Key

FUNCTION, NOISE = functions.dropwave(), 1e-2
FEATURES = (50, 100, 400, 1600)
OBSERVATIONS = (10, 20, 40, 80, 160, 320)
#: Of those: where hyperparameters are fitted too.
FITTED_FEATURES, FITTED_OBSERVATIONS = (100, 1600), 4
#: Points at which variances are compared.
PLACES = 100


def _run(options: Options) -> Result:
    runs = options.runs_or(30, 4)
    counts = OBSERVATIONS[: 4 if options.quick else None]
    keys = jr.split(jr.key(options.seed), runs)
    distance, ratio = {}, {}
    for size in progress(FEATURES[: 2 if options.quick else None], "egp-evidence"):
        found = [np.asarray(part) for part in compared(size, counts, keys)]
        distance[f"{size} features"], ratio[f"{size} features"] = found
    for size in progress(() if options.quick else FITTED_FEATURES, "egp-evidence, fitted"):
        found = [
            np.asarray(part) for part in compared(size, counts[:FITTED_OBSERVATIONS], keys, True)
        ]
        distance[f"{size} features, fitted"], ratio[f"{size} features, fitted"] = found
    curves = {f"{name}, weights": curve for name, curve in distance.items()}
    curves |= {f"{name}, variance": curve for name, curve in ratio.items()}
    return Result(
        settings={"runs": runs, "observations": counts, "noise": NOISE},
        curves=curves,
        checks=checks(distance, ratio),
        unit="distance of the weights, ratio of the variances",
        headers=("features", *(f"{n} obs.: weights, variance" for n in counts)),
        rows=[
            (name, *cells, *[""] * (len(counts) - len(cells)))
            for name in distance
            for means in [(distance[name].mean(axis=0), ratio[name].mean(axis=0))]
            for cells in [
                [f"{number(float(d))} {number(float(r))}" for d, r in zip(*means, strict=True)]
            ]
        ],
        figure=_figure(distance, ratio, counts),
    )


@eqx.filter_jit
def compared(
    size: int, counts: tuple[int, ...], keys: Array, fit: bool = False
) -> tuple[Float[Array, "runs counts"], Float[Array, "runs counts"]]:
    """Total variation between the weights, and the geometric mean of the ratio of variances.

    Under the kernels' own hyperparameters, or under hyperparameters of maximum evidence.
    """

    def one(key: Key) -> tuple[Array, Array]:
        x_key, place_key, setup_key = jr.split(key, 3)
        X = jr.uniform(x_key, (max(counts), FUNCTION.dim))
        y, places = jax.vmap(FUNCTION)(X), jr.uniform(place_key, (PLACES, FUNCTION.dim))

        def at(inference: AbstractInference, count: int) -> tuple[Array, Array]:
            options: Any = {"noise": NOISE, "refit_every": None, "bounds": Exact().bounds()}
            expert = Fitted(count, size=size, inference=inference, **options)
            model = Ensemble(papers(FUNCTION.dim), expert)
            shared = model.setup(setup_key, FUNCTION.dim)
            belief = _told(model, shared, X[:count], y[:count])
            belief = model.refit(shared, belief) if fit else belief
            variance = jax.vmap(lambda x: model.predict(shared, belief, x)[1])(places)
            return model.log_weights(shared, belief), variance

        rows = []
        for count in counts:
            (w, v), (exact_w, exact_v) = at(OnFeatures(), count), at(Exact(), count)
            apart = jnp.sum(jnp.abs(jnp.exp(w) - jnp.exp(exact_w))) / 2
            rows.append((apart, jnp.exp(jnp.mean(jnp.log(v / exact_v)))))
        distance, ratio = zip(*rows, strict=True)
        return jnp.stack(distance), jnp.stack(ratio)

    return jax.lax.map(one, keys)


def _told(model: Ensemble, shared: Experts, X: Array, y: Array) -> FittedBelief:
    def step(belief: FittedBelief, pair: tuple[Array, Array]) -> tuple[FittedBelief, None]:
        return model.condition(shared, belief, *pair), None

    return jax.lax.scan(step, model.start(shared), (X, y))[0]


def checks(distance: dict[str, np.ndarray], ratio: dict[str, np.ndarray]) -> dict[str, Check]:
    """The claims about the largest number of observations."""
    names = [name for name in distance if "fitted" not in name]
    apart = [distance[name][:, -1] for name in names]
    least, most = (ratio[name][:, -1] for name in (names[0], names[-1]))
    return {
        "each step to more features brings weights nearer to the exact ones, worst difference": worst(
            below(more, fewer) for fewer, more in itertools.pairwise(apart)
        ),
        f"{names[0]} have less than half of the variance, ratio": on_average(least, most=0.5),
        f"{names[-1]} have at least 0.8 of the variance, ratio": on_average(most, least=0.8),
    }


def _figure(
    distance: dict[str, np.ndarray], ratio: dict[str, np.ndarray], counts: tuple[int, ...]
) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), dpi=plotting.DPI, layout="constrained")
    left, right = figure.subplots(1, 2)
    for ax, curves in ((left, distance), (right, ratio)):
        for name, values in curves.items():
            mean, at = values.mean(axis=0), counts[: values.shape[1]]
            style = "--" if "fitted" in name else "-"
            (line,) = ax.plot(at, mean, style, marker="o", label=name)
            ends = [metrics.confidence_interval(values[:, i]) for i in range(len(at))]
            ax.fill_between(at, *zip(*ends, strict=True), color=line.get_color(), alpha=0.2, lw=0)
        ax.set_xscale("log", base=2)
        ax.set_xlabel("observations")
        ax.set_xticks(counts, [str(count) for count in counts])
    left.set_ylabel("total variation between weights, features and exact")
    right.set_ylabel("variance on features / exact")
    right.set_yscale("log")
    right.axhline(1, color="0.5", lw=1, ls=":")
    lines, names = left.get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=len(names), frameon=False)
    return figure


EXPERIMENT = Experiment(
    source="beyond the paper",
    about="what an ensemble on features loses: its weights and its variance beside the exact ones",
    time="2 min",
    run=_run,
)
