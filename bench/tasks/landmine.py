"""The SVM of a landmine field, tuned: x in [0, 1]² -> AUC on the field's validation half.

    C = 0.0001 + 9.9999 x₁,   gamma = 0.01 + 9.99 x₂

Two scores of the same SVM. The authors' ranks by `predict_proba` of `SVC(probability=True)`, whose
Platt scaling splits the data at random and, with so few mines, turns the ranking upside down in about a
quarter of the fits: noisy, of two modes. The clean objective ranks by `decision_function`. Neither
NumPy nor scikit-learn needs JAX: worker processes that import this file start fast.
"""

import functools
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bench.tasks.data import load

if TYPE_CHECKING:
    from sklearn.svm import SVC

FIELDS = 29
#: Smallest value and width of the range of C and of gamma.
LOWEST, WIDTH = np.array([1e-4, 0.01]), np.array([10 - 1e-4, 10 - 0.01])


class Field(NamedTuple):
    """Training and validation half of a field."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


@functools.cache
def fields() -> list[Field]:
    """All fields, split as the authors split them. `DataMissingError` without the file."""
    data = load("landmine.npz")

    def half(name: str, field: int) -> np.ndarray:
        first, last = data[f"{name}_offsets"][field : field + 2]
        return data[f"{name}_idx"][first:last]

    halves = [(half("train", i), half("test", i)) for i in range(FIELDS)]
    X, y = data["X"], data["y"]
    return [Field(X[train], y[train], X[test], y[test]) for train, test in halves]


@dataclass(frozen=True)
class Tuning:
    """The objective of agent n, field n; `seed` is for the authors' noise, `clean` has none.

    With `targets` so many of the first fields come first, and then all of them.
    """

    clean: bool
    seed: int
    targets: int = 0

    def __call__(self, agent: int, x: np.ndarray) -> float:
        """The AUC; the same for the same agent, point and seed, in whatever order or process."""
        from sklearn.metrics import roc_auc_score

        number = agent if agent < self.targets else agent - self.targets
        field, seed = fields()[number], self._seed(number, x)
        scores = _decision(field, x) if self.clean else _probability(field, x, seed)
        return float(roc_auc_score(field.y_test, scores))

    def _seed(self, field: int, x: np.ndarray) -> int:
        bits = np.asarray(x, np.float64).view(np.uint32)
        return int(np.random.SeedSequence([self.seed, field, *bits]).generate_state(1)[0])


def _decision(field: Field, x: np.ndarray) -> np.ndarray:
    return _svm(x).fit(field.X, field.y).decision_function(field.X_test)


def _probability(field: Field, x: np.ndarray, seed: int) -> np.ndarray:
    """Needs scikit-learn below 1.11, which removes `probability`: nothing else is the same."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*probability", category=FutureWarning)
        model = _svm(x, probability=True, random_state=seed)
        return model.fit(field.X, field.y).predict_proba(field.X_test)[:, 1]


def _svm(x: np.ndarray, **options: Any) -> "SVC":
    from sklearn.svm import SVC

    C, gamma = (LOWEST + np.asarray(x, np.float64) * WIDTH).tolist()
    return SVC(C=C, gamma=gamma, **options)
