"""BBOB: the 24 noiseless test functions for black boxes, as JAX functions.

Hansen, Finck, Ros and Auger, Real-parameter black-box optimization benchmarking 2009: noiseless
functions definitions (INRIA RR-6829). A function has instances, which differ in where the optimum is, in
its value and in rotations.

    draws        the published generator of random numbers, rotations and optima
    instances    the arrays of one instance
    formulas     the functions themselves
    functions    their names and groups, and a function of the unit cube that is maximized
"""
