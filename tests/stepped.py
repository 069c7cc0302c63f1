"""The steps of a method, compiled. One operation at a time they take three times as long."""

import equinox as eqx

init = eqx.filter_jit(lambda algorithm, key: algorithm.init(key))
ask = eqx.filter_jit(lambda algorithm, *given: algorithm.ask(*given))
tell = eqx.filter_jit(lambda algorithm, *given: algorithm.tell(*given))
warm_start = eqx.filter_jit(lambda algorithm, *given: algorithm.warm_start(*given))
