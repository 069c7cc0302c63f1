"""A robot's hand pushes an object to a goal: x in [0, 1]^dim -> minus the distance where it stops.

    r = -5 + 10 (x₁, x₂),   t = 1 + 29 x₃,   angle = arctan(r₂ / r₁) in 3-D, 2π x₄ in 4-D
    v* = -speed r / |r| + e,   e ~ N(0, 0.1²) once an evaluation;   speed 5 in 3-D, 10 in 4-D
    force = 30 m (v* - v),   torque = -30 m ω,   for ⌊10 t⌋ steps of 0.01 s;   then 100 steps of neither

The hand starts at r, turned by the angle, and pushes toward the origin, where the object lies; both
slide on a table with friction. Wang and Jegelka (2017) made the task; their numbers, not their code.
The physics is Box2D's. Nothing here needs JAX: worker processes that import this file start fast.
"""

import importlib
import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

#: Of the experiment: one agent each.
GOALS = 10
#: Half the side of the square of starts and of goals; shortest and longest push.
REACH, SHORTEST, LONGEST = 5.0, 1.0, 30.0
#: Speed that the hand aims at, by dimension, and the standard deviation of each component around it.
SPEEDS, SPREAD = {3: 5.0, 4: 10.0}, 0.1
#: Of the controller, which multiplies by the mass even where a torque asks for the inertia.
GAIN = 30
#: Seconds of a step, iterations on velocities and positions; steps a unit of t, and after the push.
STEP, ITERATIONS, STEPS, COASTING = 0.01, 10, 10, 100


@dataclass(frozen=True)
class Pushing:
    """The objective of agent n, goal n of `goals(goals)`; `seed` is for the noise, `clean` has none.

    `ValueError` where there are neither 3 nor 4 coordinates.
    """

    dim: int
    clean: bool
    seed: int
    goals: int = 0

    def __post_init__(self):
        if self.dim not in SPEEDS:
            raise ValueError(f"a push has 3 or 4 coordinates, got {self.dim}.")

    def __call__(self, agent: int, x: np.ndarray) -> float:
        """Minus the distance; the same for the same agent, point and seed, in any order or process."""
        noise = np.zeros(2) if self.clean else SPREAD * self._random(agent, x).standard_normal(2)
        x1, x2, x3, *x4 = self._checked(x)
        start = 2 * REACH * x1 - REACH, 2 * REACH * x2 - REACH
        duration = SHORTEST + (LONGEST - SHORTEST) * x3
        angle = 2 * math.pi * x4[0] if x4 else facing(*start)
        stop = push(start, duration, angle, SPEEDS[self.dim], noise)
        return -math.dist(stop, goals(self.goals)[agent])

    def _random(self, agent: int, x: np.ndarray) -> np.random.Generator:
        bits = np.asarray(x, np.float64).view(np.uint32)
        return np.random.default_rng([self.seed, agent, *bits])

    def _checked(self, x: np.ndarray) -> list[float]:
        if np.shape(x) != (self.dim,):
            raise ValueError(f"x has shape {np.shape(x)}, expected ({self.dim},): one point.")
        return np.asarray(x, np.float64).tolist()


def goals(seed: int) -> Float[np.ndarray, "goals 2"]:
    """The place where the object should stop, uniform on the square."""
    return np.random.default_rng(seed).uniform(-REACH, REACH, (GOALS, 2))


def facing(rx: float, ry: float) -> float:
    """arctan(ry / rx) with its limit ±π/2 at rx = 0, and 0 at the origin."""
    return math.atan2(math.copysign(1, rx) * ry, abs(rx))


def push(
    start: tuple[float, float],
    duration: float,
    angle: float,
    speed: float,
    noise: Float[np.ndarray, "2"],
) -> tuple[float, float]:
    """The place where the object stops. A hand that starts exactly at the origin aims nowhere: `noise`
    alone.
    """
    box2d = _box2d()
    world = box2d.b2World(gravity=(0, 0), doSleep=True)
    # The table lies under everything and collides with nothing, since bodies that a joint connects
    # do not collide. Friction of the joint is what slows the others down.
    table = world.CreateStaticBody(shapes=box2d.b2PolygonShape(box=(500, 500)))
    ball = box2d.b2FixtureDef(shape=box2d.b2CircleShape(radius=1), density=0.05, friction=0.01)
    item = world.CreateDynamicBody(position=(0, 0), fixtures=ball)
    world.CreateFrictionJoint(bodyA=table, bodyB=item, maxForce=5, maxTorque=2)
    box = box2d.b2FixtureDef(shape=box2d.b2PolygonShape(box=(0.3, 1)), density=0.1, friction=0.1)
    hand = world.CreateDynamicBody(position=start, angle=angle, fixtures=box)
    world.CreateFrictionJoint(bodyA=table, bodyB=hand, maxForce=2, maxTorque=2)
    # Vectors of Box2D's single precision: others lead to another sixth digit.
    target = box2d.b2Vec2(*_aim(start, speed, noise))
    for _ in range(int(STEPS * duration)):
        hand.ApplyTorque(-hand.mass * hand.angularVelocity * GAIN, True)
        force = hand.mass * (target - hand.linearVelocity) * GAIN
        hand.ApplyForce(force, hand.position, True)
        world.Step(STEP, ITERATIONS, ITERATIONS)
    for _ in range(COASTING):
        world.Step(STEP, ITERATIONS, ITERATIONS)
    # Numbers of our own: a vector of a world that no longer exists crashes the interpreter.
    return float(item.position.x), float(item.position.y)


def _aim(
    start: tuple[float, float], speed: float, noise: Float[np.ndarray, "2"]
) -> tuple[float, float]:
    distance = math.hypot(*start) or 1.0
    vx, vy = (-speed * r / distance + float(e) for r, e in zip(start, noise, strict=True))
    return vx, vy


def _box2d() -> Any:
    try:
        with warnings.catch_warnings():
            # Box2D 2.3.10 crashes the interpreter where its own deprecations are made errors.
            warnings.simplefilter("ignore", DeprecationWarning)
            return importlib.import_module("Box2D")
    except ImportError as error:
        raise ImportError("pushing needs the physics engine Box2D: pip install box2d") from error
