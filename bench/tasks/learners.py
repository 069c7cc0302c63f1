"""Tuning tasks with choices, integers and numbers: four learners on three data sets of scikit-learn.

    cancer      569 tumors, 30 numbers each: malignant or not
    digits      500 images, 64 numbers each: an odd digit or not
    diabetes    442 patients, 10 numbers each: the progress of their disease

A value is the mean over three folds: less the Brier score of the probabilities, or the accuracy of an
SVM, which has none. On diabetes it is less the root mean square error, in deviations of the progress.
Learners have fixed seeds, so that a value has no noise.
"""

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxbo.domains.parameters import Categorical, Integer, Real
from jaxbo.domains.space import Space

FOLDS, DIGITS, TREES = 3, 500, 30
DATA = ("cancer", "digits", "diabetes")
#: A support vector machine ends after so many steps.
STEPS = 20_000


class Learner(NamedTuple):
    """Its parameters, and the estimator for them; the truth value says whether it classifies."""

    space: Space
    make: Callable[[dict[str, Any], bool], Any]


def _svm(values: dict[str, Any], classifies: bool) -> Any:
    from sklearn import svm
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    kind = svm.SVC if classifies else svm.SVR
    return make_pipeline(StandardScaler(), kind(**values, max_iter=STEPS))


def _forest(values: dict[str, Any], classifies: bool) -> Any:
    from sklearn import ensemble

    kind = ensemble.RandomForestClassifier if classifies else ensemble.RandomForestRegressor
    return kind(**values, n_estimators=TREES, random_state=0)


def _boosting(values: dict[str, Any], classifies: bool) -> Any:
    from sklearn import ensemble

    kind = ensemble.GradientBoostingClassifier if classifies else ensemble.GradientBoostingRegressor
    return kind(**values, random_state=0)


def _neighbors(values: dict[str, Any], classifies: bool) -> Any:
    from sklearn import neighbors
    from sklearn.decomposition import PCA
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    kind = neighbors.KNeighborsClassifier if classifies else neighbors.KNeighborsRegressor
    rest = dict(values)
    scaler = StandardScaler(with_std=rest.pop("scaled"))
    components = PCA(rest.pop("components"), whiten=rest.pop("whiten"), svd_solver="full")
    return make_pipeline(scaler, components, kind(**rest))


LEARNERS = {
    "SVM": Learner(
        Space(
            C=Real(1e-3, 1e3, log=True),
            gamma=Real(1e-5, 10.0, log=True),
            kernel=Categorical("rbf", "poly", "sigmoid"),
            degree=Integer(2, 5),
            coef0=Real(-1.0, 1.0),
        ),
        _svm,
    ),
    "forest": Learner(
        Space(
            max_depth=Integer(1, 16),
            min_samples_leaf=Integer(1, 32, log=True),
            max_features=Real(0.05, 1.0),
            bootstrap=Categorical(True, False),
        ),
        _forest,
    ),
    "boosting": Learner(
        Space(
            learning_rate=Real(1e-3, 1.0, log=True),
            n_estimators=Integer(5, 60, log=True),
            max_depth=Integer(1, 6),
            subsample=Real(0.3, 1.0),
            min_samples_leaf=Integer(1, 32, log=True),
        ),
        _boosting,
    ),
    "neighbors": Learner(
        Space(
            n_neighbors=Integer(1, 50, log=True),
            weights=Categorical("uniform", "distance"),
            metric=Categorical("euclidean", "manhattan", "chebyshev"),
            components=Integer(1, 10),
            scaled=Categorical(True, False),
            whiten=Categorical(True, False),
        ),
        _neighbors,
    ),
}
TASKS = tuple(f"{learner} on {data}" for learner in LEARNERS for data in DATA)


def space(task: str) -> Space:
    """The parameters of a task."""
    return LEARNERS[task.split()[0]].space


def objective(task: str) -> Callable[[Mapping[str, Any]], float]:
    """The value of parameters, to be maximized."""
    name, data = task.split(" on ")
    return functools.partial(_value, LEARNERS[name], data)


def _value(learner: Learner, data: str, values: Mapping[str, Any]) -> float:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import cross_val_score

    x, y, classifies, folds = _loaded(data)
    model = learner.make(dict(values), classifies)
    if not classifies:
        score = "neg_root_mean_squared_error"
    else:
        score = "neg_brier_score" if hasattr(model, "predict_proba") else "accuracy"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return float(np.mean(cross_val_score(model, x, y, scoring=score, cv=folds)))


@functools.cache
def _loaded(data: str) -> tuple[np.ndarray, np.ndarray, bool, Any]:
    """Rows, answers, whether they are classes, and the folds."""
    from sklearn import datasets
    from sklearn.model_selection import KFold, StratifiedKFold

    load = {
        "cancer": datasets.load_breast_cancer,
        "digits": datasets.load_digits,
        "diabetes": datasets.load_diabetes,
    }[data]
    x, y = map(np.asarray, load(return_X_y=True))
    if data == "diabetes":
        return x, (y - y.mean()) / y.std(), False, KFold(FOLDS, shuffle=True, random_state=0)
    if data == "digits":
        x, y = x[:DIGITS], y[:DIGITS] % 2
    return x, y, True, StratifiedKFold(FOLDS, shuffle=True, random_state=0)
