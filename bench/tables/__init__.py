"""Tables of the pages, made from the results by `python -m bench report`.

A page holds

    <!-- table: NAME -->
    these lines are made anew
    <!-- end -->

and NAME is one of `TABLES`. A mean has its standard error in brackets, of which two digits are shown.
"""

from collections.abc import Callable

from bench.tables import best, cepe, dec, dp, egp, fts, prior, robustness, speed
from bench.tables.cells import Results, Rows, markdown

TABLES: dict[str, Callable[[Results], Rows]] = {
    "best": best.best,
    "best-aim": best.best_aim,
    "best-beside": best.best_beside,
    "best-botorch": best.best_botorch,
    "best-classical": best.best_classical,
    "best-even": best.best_even,
    "best-high": best.best_high,
    "best-noisy": best.best_noisy,
    "cepe": cepe.cepe,
    "cepe-communication": cepe.communication,
    "cepe-first": cepe.first,
    "cepe-rate": cepe.rate,
    "cluster": egp.cluster,
    "dec-chains": dec.dec_chains,
    "dec-cnn": dec.dec_cnn,
    "dec-gp": dec.dec_gp,
    "dec-learned": dec.dec_learned,
    "dec-structure": dec.dec_structure,
    "dec-synthetic": dec.dec_synthetic,
    "dec-times": dec.dec_times,
    "demo": speed.demo,
    "dp-controls": dp.controls,
    "dp-har": dp.har,
    "dp-landmine": dp.landmine,
    "dp-loudness": dp.loudness,
    "dp-population": dp.population,
    "dp-synthetic": dp.synthetic,
    "egp-evidence": egp.egp_evidence,
    "egp-network": egp.egp_network,
    "egp-parallel": egp.egp_parallel,
    "egp-robot": egp.egp_robot,
    "egp-synthetic": egp.egp_synthetic,
    "egp-weights": egp.egp_weights,
    "failed": robustness.failed,
    "failures": robustness.failures,
    "fts-agents": fts.agents,
    "fts-growing": fts.growing,
    "fts-landmine": fts.fts_landmine,
    "fts-landmine-rounds": fts.landmine_rounds,
    "fts-lengths": fts.lengths,
    "fts-mixed": fts.mixed,
    "fts-nystrom": fts.nystrom,
    "fts-people": fts.people,
    "fts-pooled": fts.pooled,
    "gpu": speed.gpu,
    "methods": speed.methods,
    "methods-compiling": speed.methods_compiling,
    "noise": robustness.noise,
    "plateaus": robustness.plateaus,
    "prior-bound": prior.prior_bound,
    "prior-groups": prior.prior_groups,
    "prior-growing": prior.prior_growing,
    "prior-har": prior.prior_har,
    "prior-landmine": prior.prior_landmine,
    "prior-learners": prior.prior_learners,
    "prior-least": prior.prior_least,
    "prior-participation": prior.prior_participation,
    "prior-policies": prior.prior_policies,
    "prior-population": speed.prior_population,
    "prior-private": prior.prior_private,
    "prior-rounds": speed.prior_rounds,
    "prior-secure": prior.prior_secure,
    "prior-steps": prior.prior_steps,
    "prior-synthetic": prior.prior_synthetic,
    "prior-tuning": prior.prior_tuning,
    "prior-units": prior.prior_units,
    "programs": speed.programs,
    "readme-egp": egp.readme,
    "readme-speed": speed.readme,
    "round-parts": speed.round_parts,
    "saving": speed.saving,
    "scaling": speed.scaling,
    "speed-dec-hbo": speed.dec_hbo,
    "speed-ensembles": speed.ensembles,
    "speed-max-sum": speed.max_sum,
    "speed-rest": speed.rest,
    "speed-rounds": speed.rounds,
    "speed-sketches": speed.sketches,
    "tuning": best.tuning,
    "workers": best.workers,
}
#: Tables of times, and the results that they are from: the page says where and when these were measured.
TIMED = {
    "gpu": "gpu",
    "methods": "methods",
    "readme-speed": "speed",
    "prior-population": "prior-population",
    "prior-rounds": "prior-rounds",
    "round-parts": "round-parts",
    "saving": "saving",
    "scaling": "scaling",
    "speed-dec-hbo": "speed-dec-hbo",
    "speed-ensembles": "speed",
    "speed-max-sum": "speed-max-sum",
    "speed-rest": "speed",
    "speed-rounds": "speed",
    "speed-sketches": "speed",
}


def made(name: str, results: Results) -> str:
    """The table of that name, and below a table of times where and when they were measured."""
    rows = TABLES[name](results)
    if not rows:
        return "*The experiment has not been run.*"
    table = markdown(rows)
    if name in TIMED:
        return f"{table}\n\n{speed.measured(results[TIMED[name]])}"
    return table
