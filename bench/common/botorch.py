"""BoTorch's LogEI with its default model, refitted every time: the choice of most users."""
# pyright: reportMissingImports=false

import importlib.util
import warnings
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

BOTORCH = "BoTorch, LogEI"
#: How its acquisition is maximized, within BoTorch's own tutorials' numbers.
RESTARTS, RAW_SAMPLES = 8, 256


def installed() -> bool:
    """Whether there is anything to compare with."""
    return importlib.util.find_spec("botorch") is not None


def log_ei(
    function: Callable[[np.ndarray], float],
    initial: Float[np.ndarray, "n dim"],
    rounds: int,
    seed: int,
) -> Float[np.ndarray, " evaluations"]:
    """The values of the initial points and of `rounds` evaluations after them, to be maximized."""
    import torch
    from botorch.acquisition import LogExpectedImprovement
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.optim import optimize_acqf
    from gpytorch.mlls import ExactMarginalLogLikelihood

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="botorch|gpytorch|linear_operator")
        torch.manual_seed(seed)
        X = torch.tensor(np.asarray(initial, float), dtype=torch.double)
        y = torch.tensor([[float(function(x))] for x in initial], dtype=torch.double)
        bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double).repeat(1, X.shape[1])
        for _ in range(rounds):
            model = SingleTaskGP(X, y)
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
            improvement = LogExpectedImprovement(model, y.max())
            x, _ = optimize_acqf(
                improvement, bounds, q=1, num_restarts=RESTARTS, raw_samples=RAW_SAMPLES
            )
            value = torch.tensor([[float(function(x[0].numpy()))]], dtype=torch.double)
            X, y = torch.cat([X, x]), torch.cat([y, value])
        return y[:, 0].numpy()
