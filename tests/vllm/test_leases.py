"""The leases of a push worker: nothing is given back under a WRITE, and nothing is pushed after."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata

import kvfast.vllm.push
from kvfast.testing import FakeClock, ScriptedAgent
from tests.vllm import rig
from tests.vllm.scenarios import clock_module
from tests.vllm.test_better_than_stock import BACKENDS, posted, push


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_lease_that_runs_out_between_two_looks_at_the_clock(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    handle = posted(agent, "PROC")
    rig.sending(worker, "idle")
    rig.sending(worker, "written", handle)
    worker._reqs_to_send.update(idle=5.0, written=20.0)
    for module, now in ((kvfast.vllm.push, 10.0), (base_worker, 30.0)):
        monkeypatch.setattr(module, "time", clock_module(time, FakeClock(now)))
    assert worker.get_transfer_results().finished_sending == {"idle"}
    assert worker._reqs_to_send == {"written": 20.0}
    agent.set_state(handle, "DONE")
    assert worker.get_transfer_results().finished_sending == {"written"}
    assert len(worker.xfer_stats.data["num_kv_expired_reqs"]) == 1


def finished(req_id: str, blocks: Any, lease_s: float) -> Any:
    """Return what a prefill's worker is given when a request has ended."""
    metadata = NixlConnectorMetadata()
    metadata.reqs_in_batch.add(req_id)
    metadata.reqs_to_send[req_id] = time.perf_counter() + lease_s
    metadata.push_finished_blocks[req_id] = blocks
    return metadata


def test_an_id_that_is_used_again_after_its_lease_is_pushed(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed: list[Any] = []
    monkeypatch.setattr(
        rig.STOCK["push"],
        "_xfer_blocks_for_req",
        lambda worker, req_id, meta: pushed.append(meta.local_block_ids),
    )
    registration = rig.registration()
    old, new = ([1],), ([2],)
    worker = push(ScriptedAgent(), ours=True, backend=backend)
    worker.start_load_kv(finished("r", old, lease_s=-1.0))
    assert worker.get_transfer_results().finished_sending == {"r"}
    worker.start_load_kv(finished("r", new, lease_s=60.0))
    worker._do_start_push_kv("r", old, registration)  # it had to wait for a handshake until now
    assert pushed == []
    worker._do_start_push_kv("r", new, registration)
    assert pushed == [new]


@pytest.mark.parametrize("end", ["lease", "notification"])
def test_a_push_that_waits_for_its_engines_removal_does_not_outlive_its_lease(
    backend: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed: list[str] = []
    monkeypatch.setattr(
        rig.STOCK["push"], "_xfer_blocks_for_req", lambda worker, req_id, meta: pushed.append(req_id)
    )
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    handle = posted(agent, "PROC")
    worker._sending_transfers.note_peer(handle, rig.AGENT)
    rig.sending(worker, "keeps the engine", handle)
    worker._kvfast_disconnected(rig.ENGINE)
    for req_id in ("ends", "lives"):
        rig.sending(worker, req_id)
        worker._do_start_push_kv(req_id, ([1],), rig.registration())
    if end == "lease":
        worker._reqs_to_send["ends"] = time.perf_counter() - 1.0
    else:
        del worker._reqs_to_send["ends"]  # as 0.31 and 0.32 do then
    worker.get_transfer_results()
    assert [waiting[0] for waiting in worker._kvfast.parked_pushes] == ["lives"]
    for number in range(5000):  # more than is remembered of such ends
        worker._kvfast.sends.withdraw(str(number))
    agent.set_state(handle, "DONE")
    for _ in range(2):
        worker.get_transfer_results()
    worker._remote_agents[rig.ENGINE] = {(0, 0): rig.AGENT}
    while not worker._deferred_push_inbox.empty():
        worker._do_start_push_kv(*worker._deferred_push_inbox.get_nowait())
    assert pushed == ["lives"]
