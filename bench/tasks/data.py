"""The data sets of the experiments, from files on this machine.

In the folder that the environment variable JAXBO_DATA names; by default `shared/data` beside the
project's own folder. Nothing is downloaded.
"""

import os
from pathlib import Path

import numpy as np

#: What each file holds and where it comes from, for whoever does not have it.
SOURCES = {
    "landmine.npz": (
        "29 landmine fields, 9 radar features and a binary label (arrays X, y, train_idx, "
        "train_offsets, test_idx, test_offsets): LandmineData.mat and its split in "
        "landmine_formated_data.pkl of github.com/daizhongxiang/Federated_Bayesian_Optimization, "
        "first published at http://www.ee.duke.edu/~lcarin/LandmineData.zip"
    ),
    "uci_har.npz": (
        "10299 windows of 30 people's movements, 561 features and one of 6 activities (arrays X, y, "
        "subject): UCI's Human Activity Recognition Using Smartphones (Anguita and others, 2013)"
    ),
    "extrasensory_eating.npz": (
        "80576 minutes of 30 people, 57 features of a phone's and a watch's accelerometers and whether "
        "they eat (arrays X, y, user, balanced): ExtraSensory (Vaizman, Ellis and Lanckriet, 2017)"
    ),
    "digits_by_writer.npz": (
        "5281 MNIST images of NIST's writers 0 to 49 (arrays images, y, writer, is_test): MNIST's "
        "training set, with the writers that QMNIST (Yadav and Bottou, 2019) traced"
    ),
    "mnist_7500.npz": (
        "the first 7500 of MNIST's training images (arrays images, y, is_val): LeCun, Cortes and "
        "Burges; rows 0 to 5999 are to train on, the others validate"
    ),
    "breast_cancer_ljubljana.npz": (
        "286 breast cancer patients of Ljubljana, nine categorical attributes and recurrence or none "
        "(arrays codes, y; -1 is a missing value): UCI's Breast Cancer (Zwitter and Soklic, 1988)"
    ),
    "metro_traffic.npz": (
        "48204 hours of traffic on a highway in Minnesota, weather and time, and the quarter of the "
        "volume (arrays X, y, feature_names, weather_main): UCI's Metro Interstate Traffic Volume"
    ),
    "protein_casp.npz": (
        "45730 proteins' residues, nine physicochemical attributes and their size in angstrom (arrays "
        "X, y): UCI's Physicochemical Properties of Protein Tertiary Structure (Rana, 2013)"
    ),
    "cifar10_7000.npz": (
        "7000 of CIFAR-10's images (arrays images, y, split: 0 to train, 1 to validate, 2 to test): "
        "Krizhevsky, Learning Multiple Layers of Features from Tiny Images (2009)"
    ),
}


class DataMissingError(Exception):
    """A data set is not on this machine: its name, its content, its source."""


def folder() -> Path:
    """The folder in which the data sets are expected."""
    default = Path(__file__).resolve().parents[3] / "shared" / "data"
    return Path(os.environ.get("JAXBO_DATA") or default)


def load(name: str) -> dict[str, np.ndarray]:
    """All arrays of a data set. `DataMissingError` if the file is not there."""
    path = folder() / name
    if not path.is_file():
        raise DataMissingError(
            f"{name} is missing: it was looked for in {path.parent}. It holds {SOURCES[name]}. "
            "Put it there, or set JAXBO_DATA to the folder that has it."
        )
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)
