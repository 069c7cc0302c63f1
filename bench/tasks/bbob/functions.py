"""BBOB's functions by number, and each as a function of the unit cube that is maximized.

BBOB(number, dim, index)    u -> -(f(10 u - 5) - f_opt),  0 at the maximum
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bench.tasks.bbob import formulas
from bench.tasks.bbob.formulas import Formula
from bench.tasks.bbob.instances import Instance, instance
from jaxbo.types import Point, Scalar

SEPARABLE, MODERATE, ILL = "separable", "moderate", "ill-conditioned"
MULTIMODAL, WEAK = "multimodal", "weakly structured"


class Function(NamedTuple):
    """A function with its name in the paper, and the group that the paper puts it into."""

    name: str
    group: str
    formula: Formula


FUNCTIONS = {
    1: Function("sphere", SEPARABLE, formulas.sphere),
    2: Function("ellipsoid", SEPARABLE, formulas.ellipsoid),
    3: Function("Rastrigin", SEPARABLE, formulas.rastrigin),
    4: Function("Büche-Rastrigin", SEPARABLE, formulas.bueche_rastrigin),
    5: Function("linear slope", SEPARABLE, formulas.linear_slope),
    6: Function("attractive sector", MODERATE, formulas.attractive_sector),
    7: Function("step ellipsoid", MODERATE, formulas.step_ellipsoid),
    8: Function("Rosenbrock", MODERATE, formulas.rosenbrock),
    9: Function("Rosenbrock, rotated", MODERATE, formulas.turned_rosenbrock),
    10: Function("ellipsoid, rotated", ILL, formulas.turned_ellipsoid),
    11: Function("discus", ILL, formulas.discus),
    12: Function("bent cigar", ILL, formulas.bent_cigar),
    13: Function("sharp ridge", ILL, formulas.sharp_ridge),
    14: Function("different powers", ILL, formulas.different_powers),
    15: Function("Rastrigin, rotated", MULTIMODAL, formulas.turned_rastrigin),
    16: Function("Weierstrass", MULTIMODAL, formulas.weierstrass),
    17: Function("Schaffers F7", MULTIMODAL, formulas.schaffers),
    18: Function("Schaffers F7, condition 1000", MULTIMODAL, formulas.steep_schaffers),
    19: Function("Griewank-Rosenbrock", MULTIMODAL, formulas.griewank_rosenbrock),
    20: Function("Schwefel", WEAK, formulas.schwefel),
    21: Function("Gallagher, 101 peaks", WEAK, formulas.gallagher),
    22: Function("Gallagher, 21 peaks", WEAK, formulas.gallagher),
    23: Function("Katsuura", WEAK, formulas.katsuura),
    24: Function("Lunacek bi-Rastrigin", WEAK, formulas.lunacek),
}
_FORMULAS = tuple(function.formula for function in FUNCTIONS.values())


def excess(known: Instance, x: Float[np.ndarray, " dim"]) -> float:
    """f(x) - f_opt at a point of [-5, 5]^dim, by NumPy in float64."""
    return float(FUNCTIONS[int(known.number)].formula(known, np.asarray(x, np.float64)))


class BBOB(eqx.Module):
    """An instance on the unit cube, to be maximized.

    All its leaves are numbers: the same compiled program takes all functions and instances of a
    dimension.
    """

    known: Instance

    def __init__(self, number: int, dim: int, index: int = 1):
        self.known = instance(number, dim, index)

    @property
    def dim(self) -> int:
        """The number of coordinates."""
        return self.known.optimum.shape[-1]

    @property
    def maximizer(self) -> Float[Array | np.ndarray, " dim"]:
        """The point of the cube with the largest value, 0."""
        return (self.known.optimum + 5) / 10

    def __call__(self, u: Point) -> Scalar:
        known = jax.tree.map(lambda leaf: jnp.asarray(leaf, u.dtype), self.known)
        which = jnp.asarray(self.known.number) - 1
        return -jax.lax.switch(which, _FORMULAS, known, 10 * u - 5)

    def regret(self, u: Float[np.ndarray, " dim"]) -> float:
        """The regret of a point of the cube, by NumPy in float64."""
        return excess(self.known, 10 * np.asarray(u, np.float64) - 5)
