"""A single black box and K workers: an ensemble of Gaussian processes that chooses its own kernel
(EGP-TS).

    f ~ Σ_m w_m GP_m,    w_m ∝ evidence of kernel m                     models.ensemble, eq. 5 to 7
    x_k = argmax f_k(x),    f_k ~ GP of an expert drawn by weight        for every worker, eq. 8, 9

Lu, Polyzos, Li and Giannakis, Surrogate modeling for Bayesian optimization beyond a single Gaussian
process (2022), Algorithms 1 and 2.
"""

import equinox as eqx
import jax.numpy as jnp

from jaxbo._check import is_a, require, whole
from jaxbo._keys import aside
from jaxbo.algos.base.one_model import AbstractOneModel, State
from jaxbo.algos.base.outcomes import Outcome, as_outcomes, check_names
from jaxbo.domains.base import AbstractDomain
from jaxbo.domains.space import Space
from jaxbo.kernels.choosing import quadratic
from jaxbo.kernels.choosing.maximize import query
from jaxbo.kernels.choosing.policy import AbstractPolicy, Thompson
from jaxbo.kernels.models.surrogate import AbstractSurrogate
from jaxbo.types import Flag, Key, Point, Points


class EGP(AbstractOneModel):
    """Workers evaluate a single black box, and a single model holds all that they observe.

    `surrogate` is the model, and `policy` says which point to query given the model:

        EGP-TS                Ensemble(kernels, Fitted(capacity))       Thompson()
        EGP-EI                the same                                  Drawn(EI())
        EI of the mixture     the same                                  EI()
        GP-TS, GP-EI, GP-UCB  Fitted(capacity, kernel)                  Thompson(), EI(), UCB(beta)
        fully Bayesian GP-TS  Marginal(Fitted(capacity, kernel))        Thompson()
        BanditBO              Ensemble(kernels, Fitted(capacity))       Largest()
        few evaluations       Ensemble.warped(dim, capacity)            EI()

    Thompson sampling explores more than expected improvement. It is for functions of many nearly
    equal peaks, and for many workers. On features it is sure too early: give `inference=Exact()`.
    If few values are far from all others it looks elsewhere: give `warp=True`.

    In every round `ask` has a query for each worker (Algorithm 1). Asynchronous workers use
    `tell_one` and `ask_one` (Algorithm 2). A worker that has ended is told of by `tell_one`, in any
    order, and `ask_one` gives it the next query. Jit both, or take a `Desk`, which does.

    With `outcomes` an evaluation returns a dictionary, `{"value": y, "latency": t}`. Each outcome
    has a model of its own, of the same kind and size. `EI` is multiplied by the probability that
    all bounds are met, and improves on the best point that is expected to meet them. A function
    that `Thompson` draws is maximized where the outcomes drawn with it meet their bounds. With
    `UCB` the upper bounds of the slacks take the place of drawn outcomes.

    For a failed evaluation return NaN, not a penalty. Places where evaluations fail are then passed
    over. If a value is far from all others, the others look alike, even after warping.

    Differs from the paper in two points. Features keep their base frequencies when hyperparameters
    are fitted anew. The floor of appendix E is for drawing only.

    Memory: that of `surrogate`; measured in a run of 35 observations with three kernels that are
    fitted, 0.8 MB at most.

    Args:
        domain: The space to search.
        surrogate: The model of the black box.
        policy: The rule for the next query. Default: `Thompson()`.
        workers: Number of evaluations at the same time, at least 1. Default: 1.
        candidates: Number of points from which a search for the maximizer starts, at least 1.
            Default: 1000.
        outcomes: Numbers with bounds that an evaluation returns beside its value, such as a
            latency. Default: none.
        focus: The number of observations, at least 1, from which on every second fit sees the
            better half of the values alone: values below the median count as the median. The model
            then tells the best values apart, which are alike beside the worst. Until the next fit
            it predicts bad values as too good. None: all fits see all values. Default: None.
        quadratic_every: One query in so many, at least 1, is the top of a quadratic that is fitted
            to the best points, as soon as there are enough. Near a smooth peak it finds more digits
            than a process. The policy's query stays where the quadratic explains less than nine
            tenths of the variance of these values. In a space with steps the top is rounded to the
            nearest point. With more than twenty coordinates no query is a top, because not enough
            evaluations are remembered. For a model without a capacity the limit is ten. None: the
            policy has all queries. Default: None.

    Raises:
        ValueError: The policy does not fit the surrogate, an outcome has the name of a parameter,
            the surrogate is not fitted again, so that `focus` has no meaning, or
            `quadratic_every` is given with outcomes, a context or a policy that samples functions.

    Example:
        >>> import jax.random as jr
        >>> import jaxbo
        >>> model = jaxbo.Fitted(16, size=10, refit_every=None, inference=jaxbo.Exact())
        >>> method = jaxbo.EGP(jaxbo.Cube(1), model, jaxbo.EI(), candidates=50)
        >>> state, trace = jaxbo.run(method, lambda x: -((x[0] - 0.3) ** 2), 8, jr.key(0), initial=4)
        >>> bool(trace.values.max() > -0.01)
        True
    """

    domain: AbstractDomain
    surrogate: AbstractSurrogate
    policy: AbstractPolicy = eqx.field(default_factory=Thompson)
    workers: int = eqx.field(static=True, default=1)
    candidates: int = eqx.field(static=True, default=1000)
    outcomes: tuple[Outcome, ...] = eqx.field(converter=as_outcomes, default=())  # pyright: ignore[reportIncompatibleMethodOverride]
    focus: int | None = eqx.field(static=True, default=None)  # pyright: ignore[reportIncompatibleMethodOverride]
    quadratic_every: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        is_a("surrogate", self.surrogate, AbstractSurrogate)
        is_a("policy", self.policy, AbstractPolicy)
        self.policy.check(self.surrogate)
        whole("candidates", self.candidates, least=1)
        check_names(self.outcomes, self.domain)
        if self.outcomes:
            self.policy.check_constrained(self.surrogate)
        if self.quadratic_every is not None:
            whole("quadratic_every", self.quadratic_every, least=1)
            context = isinstance(self.domain, Space) and self.domain.context
            require(
                not (self.outcomes or self.random or context),
                "quadratic_every is for a policy that does not sample functions, such as EI(), without "
                "outcomes or a Context.",
            )

    @property
    def targets(self) -> int:
        return self.workers

    @property
    def random(self) -> bool:
        return self.policy.random()

    def prepare(self, key: Key) -> Points:
        return self.domain.candidates(key, self.candidates)

    def query(self, key: Key, state: State, candidates: Points) -> tuple[Point, tuple[()]]:
        model, *slacks = self.models(state)
        if not slacks:
            function = self.policy(key, *model)
            known = function, self.domain, candidates, state.past
            return query(aside(key), *known, other=self._top(state)), ()
        function = self.policy.constrained(key, model, slacks)
        # Where outcomes are worth a look, the objective's values alone do not say.
        known = function, self.domain, candidates, state.past
        return query(aside(key), *known, alone=False, border=True), ()

    def _top(self, state: State) -> tuple[Point, Flag] | None:
        """The top of a quadratic, and whether it takes the place of the policy's query."""
        if self.quadratic_every is None:
            return None
        found = quadratic.top(state.past)
        if found is None:
            return None
        # Queries are counted one by one, those whose evaluations have not ended included.
        number = state.told + jnp.sum(state.past.pending)
        return found.x, found.trusted & (number % self.quadratic_every == 0)
