"""What tests of files and locks drive, and what they look at."""

import functools
import os
import pathlib
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.random as jr
import numpy as np

import jaxbo
from jaxbo.algos.random_search import RandomSearch
from jaxbo.domains.base import Cube
from jaxbo.runs.asynchronous import drive_async
from jaxbo.runs.driver import drive
from tests.walk import Stroll

RANDOM = RandomSearch(Cube(2), 3)
#: Two workers of a small model.
MODEL = Stroll(Cube(1), workers=2)
quiet = functools.partial(drive, progress=False)


def bowl(agent, x):
    return float(-np.sum((x - 0.1) ** 2))


class Counting:
    """An objective that counts its calls."""

    def __init__(self):
        self.calls = []

    def __call__(self, agent, x):
        self.calls.append(agent)
        return bowl(agent, x)


class Interrupting:
    """Raises before or after the n-th call that changes a file."""

    def __init__(self, moment, patch, error=KeyboardInterrupt):
        self.left, self.error = moment, error
        for name in ("open", "replace", "unlink", "fsync"):
            patch.setattr(os, name, self.around(getattr(os, name)))
        patch.setattr(np, "savez", self.around(np.savez))

    def moment(self):
        self.left -= 1
        if self.left == 0:
            raise self.error

    def around(self, function):
        def wrapped(*args, **kwargs):
            self.moment()
            result = function(*args, **kwargs)
            try:
                self.moment()
            except self.error:
                if type(result) is int:
                    os.close(result)
                raise
            return result

        return wrapped


def in_a_thread(path, objective=bowl, evaluations=2, **options):
    with ThreadPoolExecutor(2) as pool:
        return drive_async(
            MODEL, objective, evaluations, jr.key(0), executor=pool, checkpoint=path, **options
        )


def files(folder):
    """All but locks, which stay and mean nothing by themselves."""
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if _shown(file))


def _shown(file):
    return file.suffix != ".lock" and not file.is_dir()


def environment():
    """Of another process that imports this jaxbo in this precision."""
    root = str(pathlib.Path(jaxbo.__file__).parents[1])
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
        "JAX_ENABLE_X64": str(int(jax.config.jax_enable_x64)),
    }
