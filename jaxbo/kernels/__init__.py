"""The compiled core: pure functions of arrays that know no agents, rounds or algorithms."""
