"""A method of one's own for one black box. It asks the best point of the mean, or a random point.

    x = argmax mean(x)  with probability 1 - ε,    else a point at random        ε-greedy

`AbstractOneModel` keeps the model, the workers, failures and plateaus. A method says what candidates the
queries of a round have in common, and how a query follows from the state.

    python -m pytest tests/algos/test_contract.py --method tests.examples.one_model:EpsilonGreedy
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

import jaxbo
from jaxbo.domains.base import AbstractDomain
from jaxbo.kernels.choosing.maximize import query
from jaxbo.kernels.models.surrogate import AbstractSurrogate
from jaxbo.types import floating


class EpsilonGreedy(jaxbo.AbstractOneModel):
    """Sizes are static fields; numbers are leaves, so that another `epsilon` compiles nothing anew."""

    domain: AbstractDomain
    workers: int = eqx.field(static=True, default=1)
    surrogate: AbstractSurrogate = eqx.field(default_factory=lambda: jaxbo.Fixed(size=60))
    epsilon: jax.Array = eqx.field(converter=floating, default=0.2)

    @property
    def targets(self):
        return self.workers

    def prepare(self, key):
        return self.domain.candidates(key, 128)

    def query(self, key, state, candidates):
        coin_key, draw_key, query_key = jr.split(key, 3)
        mean = lambda x: self.surrogate.predict(state.shared, state.belief, x)[0]  # noqa: E731
        best = query(query_key, mean, self.domain, candidates, state.past)
        explores = jr.bernoulli(coin_key, self.epsilon)
        x = jnp.where(explores, self.domain.sample(draw_key, 1)[0], best)
        return x, explores


OBJECTIVE = jaxbo.objectives.Same(jaxbo.functions.branin_rescaled(), noise=0.05)


def optimize(workers=1, rounds=25):
    """The last state, and what was evaluated."""
    return jaxbo.run(EpsilonGreedy(jaxbo.Cube(2), workers), OBJECTIVE, rounds, jr.key(0), initial=4)


if __name__ == "__main__":
    print("best value:", jaxbo.metrics.best_so_far(optimize()[1].values)[-1].max())
