"""Warnings: simulated releases protect nobody, and a release before any value is noise alone."""

import functools
from typing import Any

import jax
import numpy as np

from jaxbo._warning import warn
from jaxbo.privacy.mechanism import Mechanism


class SimulationWarning(UserWarning):
    """Says once a process that private releases are simulated.

    Whoever knows the key knows their noise, and nothing is charged. If you mean this, ignore the
    warning.

    Example:
        >>> import warnings, jaxbo
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", jaxbo.SimulationWarning)
    """


def is_private(release: Mechanism | None) -> bool:
    """Whether a release adds noise."""
    return release is not None and bool(np.any(np.asarray(release.z) > 0))


def warn_of_simulation(algorithm: Any) -> None:
    """`SimulationWarning`, once a process, for an algorithm whose first round's release is private."""
    try:
        private = is_private(algorithm.released(0))
    except jax.errors.JAXTypeError:  # traced numbers: some of them are
        private = True
    if private:
        _warn()


# The cache is what says it once: the filters of `warnings` go by lines of code.
@functools.cache
def _warn() -> None:
    warn(
        "private releases are simulated here: their noise comes from the key, nothing is charged, and "
        "nobody's privacy is protected. For that give `drive` or a federation a ledger.",
        SimulationWarning,
    )


def warn_of_noise_alone(
    algorithm: Any, release: Mechanism | None, observed: int, initial: int
) -> None:
    """`RuntimeWarning` where agents have too few observations for a first release to say anything.

    `observed` is how many an agent has before the release, `initial` points among them.
    """
    lacking = algorithm.least_initial - observed
    if lacking > 0 and is_private(release):
        warn(
            f"the first release is charged, and will be noise alone: agents have {observed} observations "
            f"before the first round, and this method needs {algorithm.least_initial}: give "
            f"initial={initial + lacking} or more."
        )
