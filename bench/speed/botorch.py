"""The same work in BoTorch, for a single agent: an optional extra.

A round of Thompson sampling is a draw from the posterior (`draw_matheron_paths`) and its maximization
(`optimize_posterior_samples`) with as many candidates and refined points as ours. Building the model
does not count. A refit is `fit_gpytorch_mll`.
"""
# pyright: reportMissingImports=false

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Calls(NamedTuple):
    """The work of an agent in a round, and in a refit."""

    version: str
    round: Callable[[], Any]
    refit: Callable[[], Any]


def calls(
    X: np.ndarray,
    y: np.ndarray,
    noise: float,
    scale: float,
    candidates: int,
    starts: int,
    seed: int,
) -> Calls | None:
    """None where BoTorch is not installed."""
    try:
        import botorch
        import torch
        from botorch.fit import fit_gpytorch_mll
        from botorch.models import SingleTaskGP
        from botorch.sampling.pathwise import draw_matheron_paths
        from botorch.utils.sampling import optimize_posterior_samples
        from gpytorch.mlls import ExactMarginalLogLikelihood
    except ImportError:
        return None
    # It advises on input scaling and line searches; nothing of it is about time.
    warnings.filterwarnings("ignore", module="botorch|gpytorch|linear_operator")
    torch.manual_seed(seed)
    points, values = (
        torch.tensor(X, dtype=torch.double),
        torch.tensor(y, dtype=torch.double)[:, None],
    )
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double).repeat(1, points.shape[1])
    known = SingleTaskGP(points, values, torch.full_like(values, noise))
    known.covar_module.lengthscale = scale

    def one_round() -> Any:
        paths = draw_matheron_paths(known, torch.Size([1]))
        found = optimize_posterior_samples(
            paths, bounds, raw_samples=candidates, num_restarts=starts
        )
        return found[0].detach().numpy()

    def refit() -> float:
        model = SingleTaskGP(points, values)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        return model.covar_module.lengthscale.detach().numpy()

    return Calls(botorch.__version__, one_round, refit)
