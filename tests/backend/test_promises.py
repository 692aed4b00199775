"""Random programs: every backend, scan and agent does what the model says, and so the same."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvfast_ext import Quarantine, cython_available, select_backend
from tests.backend.engines import ENGINES
from tests.backend.model import Model
from tests.backend.programs import Action, Machine, anything, observe, terminal
from tests.backend.rig import Rig

BACKENDS = ["python"]
if cython_available() or os.environ.get("KVFAST_REQUIRE_EXT") == "1":
    BACKENDS.append("cython")

LONG = 1e9
thorough = settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def rigs(scans: list[str], engines: list[str], **options: Any) -> list[Rig]:
    return [
        Rig(select_backend(backend), ENGINES[engine](), scan, **options)
        for backend in BACKENDS
        for engine in engines
        for scan in scans
    ]


@thorough
@given(program=anything, lost_s=st.sampled_from([0, 30]), failed_s=st.sampled_from([0, 10]))
def test_every_table_keeps_the_contract(program: list[list[Action]], lost_s: int, failed_s: int) -> None:
    tables = rigs(["all", "watch"], sorted(ENGINES), quarantine=Quarantine(lost_s, failed_s))
    machine = Machine(tables, Model(lost_s, failed_s), step_s=10)
    for before in program:
        expected, seen = machine.run(before)
        for rig, result in zip(machine.rigs, seen):
            assert result == expected, (rig.backend.__name__, rig.engine.kind, rig.table.scan)
    machine.finish()


@thorough
@given(program=terminal)
def test_both_scans_drain_a_request_at_the_same_sweep(program: list[list[Action]]) -> None:
    # No quarantine and no refusal: then a watch scan without any full one still ends each request when
    # a full scan does, and by the end has told the same failures.
    tables = rigs(["all", "watch"], sorted(ENGINES), full_scan_s=LONG)
    machine = Machine(tables, Model(30, 0), step_s=10)
    told: list[set[tuple[str, int]]] = [set() for _ in tables]
    for before in program:
        expected, seen = machine.run(before, reuse=False)
        for result, failures in zip(seen, told):
            assert result.done == expected.done
            assert set(result.left) == set(expected.left)
            failures |= {(request, handle) for request, handle, *_ in result.failures}
        gone = [{pair for pair in failures if pair[0] not in expected.left} for failures in told]
        assert gone == [gone[0]] * len(gone)
    machine.finish()


@thorough
@given(program=anything, scan=st.sampled_from(["all", "watch"]), step_s=st.sampled_from([0.01, 0.3, 10]))
def test_both_backends_see_the_same_in_the_same_order(
    program: list[list[Action]], scan: str, step_s: float
) -> None:
    # With backoff, quarantine and rare full scans running, all that a sweep tells must still be equal.
    tables = rigs([scan], ["double", "simulated"], full_scan_s=0.5, quarantine=Quarantine(3, 0.1))
    machine = Machine(tables, Model(3, 0.1), step_s)
    for before in program:
        _, seen = machine.run(before, reuse=False)
        assert seen == [seen[0]] * len(seen)
    machine.finish()


def test_the_model_can_tell_a_difference() -> None:
    table = rigs(["all"], ["double"])[0]
    machine = Machine([table], Model(30, 0), step_s=10)
    machine.run([("add", 0, 2, None), ("end", 0, -4)])
    machine.model.handles[0].phase = "failed"
    expected, seen = machine.run([], reuse=False)
    assert seen != [expected]
    table.end()


@pytest.mark.parametrize("backend", BACKENDS)
def test_observing_changes_nothing(backend: str) -> None:
    rig = Rig(select_backend(backend), ENGINES["double"]())
    rig.add("r", 1, 2, peer="p")
    assert observe(rig, 1, ["p"]) == observe(rig, 1, ["p"])
    rig.end()
