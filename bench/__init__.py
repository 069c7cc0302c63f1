"""The papers' experiments and the speed measurements: `python -m bench NAME`.

A file for each experiment, with an `EXPERIMENT` (`runner.Experiment`), in the room of its subject. Parts
that two of them share are in a module that is no experiment: of their room, of `bench.common` or of
`bench.tasks`.
"""

#: Where each experiment is, by the name that it is run and its results are kept under.
EXPERIMENTS = {
    "best": "bench.best.blackbox",
    "cepe": "bench.cepe.regret",
    "cepe-communication": "bench.cepe.communication",
    "cepe-rate": "bench.cepe.rate",
    "cluster": "bench.egp.cluster",
    "dec-chains": "bench.dec.chains",
    "dec-cnn": "bench.dec.cnn",
    "dec-gp": "bench.dec.gp",
    "dec-structure": "bench.dec.structure",
    "dec-synthetic": "bench.dec.synthetic",
    "dp-audit": "bench.dp.audit",
    "dp-digits": "bench.dp.digits",
    "dp-har": "bench.dp.har",
    "dp-landmine": "bench.dp.landmine",
    "dp-synthetic": "bench.dp.synthetic",
    "egp-evidence": "bench.egp.evidence",
    "egp-network": "bench.egp.network",
    "egp-parallel": "bench.egp.parallel",
    "egp-robot": "bench.egp.robot",
    "egp-synthetic": "bench.egp.synthetic",
    "failures": "bench.robustness.failures",
    "fts-agents": "bench.fts.agents",
    "fts-eating": "bench.fts.eating",
    "fts-growing": "bench.fts.growing",
    "fts-har": "bench.fts.har",
    "fts-landmine": "bench.fts.landmine",
    "fts-mixed": "bench.fts.mixed",
    "fts-nystrom": "bench.fts.nystrom",
    "fts-pooled": "bench.fts.pooled",
    "fts-synthetic": "bench.fts.synthetic",
    "gpu": "bench.speed.gpu",
    "methods": "bench.speed.methods",
    "noise": "bench.robustness.noise",
    "plateaus": "bench.robustness.plateaus",
    "prior-growing": "bench.prior.growing",
    "prior-har": "bench.prior.har",
    "prior-private": "bench.prior.private",
    "prior-secure": "bench.prior.secure",
    "prior-synthetic": "bench.prior.synthetic",
    "prior-tuning": "bench.prior.tuning",
    "round-parts": "bench.speed.round_parts",
    "saving": "bench.speed.saving",
    "scaling": "bench.speed.scaling",
    "speed": "bench.speed.report",
}
