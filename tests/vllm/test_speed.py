"""Time in ``get_transfer_results`` a step, stock class against ours, on real NIXL."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.nixl.rank import Decode, Rank, nixl_missing
from tests.vllm import rig

if nixl_missing():
    pytest.skip("NIXL is not installed", allow_module_level=True)

REQUESTS, HANDLES = 64, 4
ROUNDS, STEPS = 60, 20
AT_LEAST = 5.0


def test_a_step_takes_a_fifth(capsys: pytest.CaptureFixture[str]) -> None:
    with Rank(0) as rank, Decode(blocks=REQUESTS * HANDLES) as decode:
        decode.connect(rank)
        workers = {name: rig.make(classes["pull"], decode.agent) for name, classes in classes_of().items()}
        rank.stop()
        handles = [decode.read(rank, 0, block) for block in range(REQUESTS * HANDLES)]
        # Both poll the same handles: none of them can end while the rank is stopped.
        for worker in workers.values():
            for request in range(REQUESTS):
                own = handles[request * HANDLES : (request + 1) * HANDLES]
                rig.receive(worker, f"r{request}", *own)
        best = interleaved({name: worker.get_transfer_results for name, worker in workers.items()})
        assert workers["ours"]._kvfast.ops.bound.kind == "nixl"
        assert all(len(worker._recving_transfers) == REQUESTS for worker in workers.values())
        rank.cont()
        decode.wait(*handles)
        for worker in workers.values():
            worker._recving_transfers.clear()
    ratio = best["stock"] / best["ours"]
    with capsys.disabled():
        print(f"\nstock {best['stock'] * 1e6:.1f} us, ours {best['ours'] * 1e6:.1f} us a step: {ratio:.1f}x")
    assert ratio >= AT_LEAST


def classes_of() -> dict[str, dict[str, Any]]:
    return {"stock": rig.STOCK, "ours": rig.OURS}


def interleaved(steps: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the least seconds a step took, in bursts of the contestants in turn."""
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(ROUNDS):
        for name, step in steps.items():
            for _ in range(STEPS):
                started = time.perf_counter()
                step()
                best[name] = min(best[name], time.perf_counter() - started)
    return best
