"""Memory: bytes for each handle, and none that stay when handles have gone."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tracemalloc
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kvfast_ext import SimulatedAgent
from tests.backend.doubles import DONE, PROC

MOST_BYTES = 64  # a handle, besides the handle object itself


def table_of(backend: ModuleType, handles: int, per_request: int) -> Any:
    table = backend.TransferTable(backend.bind(SimulatedAgent(handles)), scan="all")
    ids = np.arange(handles, dtype=np.uint64)
    for start in range(0, handles, per_request):
        table.add(f"r{start}", ids[start : start + per_request])
    return table


def end_of(table: Any, backend: ModuleType) -> None:
    table.ops.agent.states[:] = DONE
    backend.pop_done_transfers(table)
    assert len(table) == 0


@pytest.mark.parametrize("handles", [1000, 4097, 5000, 12_289, 50_000, 98_305])
def test_bytes_for_a_handle(compiled: ModuleType, handles: int) -> None:
    table = table_of(compiled, handles, 4)
    assert 20 < table._store.nbytes / handles <= MOST_BYTES
    end_of(table, compiled)


def test_nbytes_is_what_tracemalloc_and_the_system_see(compiled: ModuleType) -> None:
    # C++ vectors do not show in tracemalloc: a process of its own looks at what the system gave it.
    script = f"""
import sys; sys.path[:0] = {sys.path!r}
from tests.backend import test_memory as t
from kvfast_ext import select_backend
backend = select_backend("cython")
agent = t.SimulatedAgent(1 << 20)
agent.states[:] = 1; agent.telemetry[:] = 1; agent.released[:] = 0; agent.release_codes[:] = 0
table = backend.TransferTable(backend.bind(agent), scan="all")
table.add("warm", 0)
before = t.resident_bytes()
ids = t.np.arange(1, 1 << 20, dtype=t.np.uint64)
for start in range(0, len(ids), 4096):
    table.add("r", ids[start : start + 4096])
print((t.resident_bytes() - before - ids.nbytes) / len(ids), table._store.nbytes / len(ids))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    resident, told = map(float, done.stdout.split())
    assert told <= MOST_BYTES
    assert resident <= MOST_BYTES


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_python_objects_for_a_request_not_for_a_handle(compiled: ModuleType) -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        table = table_of(compiled, 40_000, 10_000)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    arrays = table.ops.agent
    own = sum(a.nbytes for a in (arrays.states, arrays.release_codes, arrays.telemetry, arrays.released))
    assert (after - before - own) / 40_000 < 16  # the list of handle objects
    end_of(table, compiled)


def test_a_sweep_of_handles_in_flight_makes_no_objects(compiled: ModuleType) -> None:
    table = table_of(compiled, 20_000, 4)
    compiled.pop_done_transfers(table)
    tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(10):
            compiled.pop_done_transfers(table)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 5_000
    end_of(table, compiled)


@pytest.mark.parametrize("outcome", [DONE, -3])
def test_coming_and_going_leaves_no_objects(backend: ModuleType, outcome: int) -> None:
    agent = SimulatedAgent(256)
    table = backend.TransferTable(backend.bind(agent), scan="all")

    def come_and_go(times: int) -> None:
        for i in range(times):
            agent.states[:] = PROC
            for handle in range(0, 256, 4):
                table.add(f"request {i} {handle}", *range(handle, handle + 4), peer=f"peer {handle % 3}")
            agent.states[:] = outcome
            assert len(backend.pop_done_transfers(table).done) == 64

    come_and_go(5)
    gc.collect()
    blocks = sys.getallocatedblocks()
    come_and_go(20)
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 100  # of 20 * 256 handles


def test_dying_peers_leave_nothing(backend: ModuleType) -> None:
    agent = SimulatedAgent(8)
    table = backend.TransferTable(backend.bind(agent), scan="all")

    def die(times: int) -> None:
        for i in range(times):
            agent.states[:] = PROC
            table.add(f"r{i}", 1, 2, peer="p")
            agent.states[1], agent.states[2] = -10, -4
            assert backend.pop_done_transfers(table).done == {f"r{i}"}

    die(100)
    gc.collect()
    blocks = sys.getallocatedblocks()
    die(2000)
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 100


TEN_MILLION = """
import sys; sys.path[:0] = {path!r}
from tests.backend.test_memory import SimulatedAgent, np, resident_bytes
from kvfast_ext import select_backend
backend, CHUNK, ROUNDS = select_backend("cython"), 50_000, 200
agent = SimulatedAgent(2 * CHUNK)
table = backend.TransferTable(backend.bind(agent), scan="watch", full_scan_s=0)
halves = [np.arange(CHUNK, dtype=np.uint64), np.arange(CHUNK, 2 * CHUNK, dtype=np.uint64)]
resident, done, samples = [], 0, 0
for i in range(ROUNDS + 1):  # one half is added while the other ends
    new, old = halves[i % 2], halves[1 - i % 2]
    agent.states[new] = 1
    if i < ROUNDS:
        for part in np.split(new, 100):
            table.add(f"{{i}}/{{part[0]}}", part, peer="p")
    agent.states[old] = 0
    result = backend.pop_done_transfers(table)
    done, samples = done + len(result.done), samples + len(result.transfers)
    if i % 20 == 10:
        resident.append(resident_bytes())
assert (len(table), table.handle_count, done, samples) == (0, 0, 100 * ROUNDS, CHUNK * ROUNDS)
assert int(agent.released.sum()) == CHUNK * ROUNDS
print(max(resident[1:]) - resident[1], table._store.nbytes, samples)
"""


def test_ten_million_handles_come_and_go(compiled: ModuleType) -> None:
    command = [sys.executable, "-c", TEN_MILLION.format(path=sys.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    growth, nbytes, handles = map(int, done.stdout.split())
    assert handles == 10_000_000
    assert growth < 2_000_000  # a fifth of a byte a handle: the allocator's noise
    assert nbytes < 2 * 100_000 * MOST_BYTES
