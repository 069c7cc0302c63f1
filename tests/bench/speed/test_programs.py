"""Sizes of the methods' programs."""

import re

import pytest

from bench import runner, tables
from bench.speed import programs


@pytest.mark.full
def test_a_program_is_counted_before_and_after_the_passes_of_the_compiler():
    found = programs.sizes("RandomSearch")
    assert 0 < found.kernels < found.instructions
    assert found.lines > 100
    assert found.decompositions == 0  # nothing is fitted


def test_decompositions_are_counted_by_their_names():
    program = """
    %a = f32[] custom-call(%x), custom_call_target="lapack_spotrf_ffi", api_version=4
    %b = f32[] custom-call(%a), custom_call_target="lapack_strsm_ffi", api_version=4
    %c = f32[] custom-call(%b), custom_call_target="lapack_ssyevd_ffi", api_version=4
    %d = f32[] custom-call(%c), custom_call_target="lapack_sgeqrf_ffi", api_version=4
    """
    assert len(re.findall(programs.DECOMPOSITION, program)) == 3


def test_each_method_has_a_row_of_sizes(monkeypatch):
    monkeypatch.setattr(programs, "sizes", lambda name: programs.ProgramSizes(9, 8, 7, 6, 5))
    made = programs._run(runner.Options(quick=True))
    assert {len(row) for row in made.rows} == {len(made.headers)}
    head, ts, _ = tables.TABLES["programs"]({"programs": {"settings": made.settings}})
    assert ts == ["TS", "9", "8", "7", "6", "5"]
    assert head[3:] == ["kernels", "decompositions", "conditionals"]
