"""Registrations in push mode: none for blocks that were given back, and a bad one costs nothing."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_scheduler import NixlPushConnectorScheduler
from vllm.v1.request import RequestStatus

from kvfast.testing import ScriptedAgent, nixlRemoteDisconnectError
from tests.vllm import rig
from tests.vllm.test_better_than_stock import BACKENDS, push

GOOD = {**rig.registration(), "request_id": "r", "local_block_ids": [[1, 2]]}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# ---- on decode


def waiting(req_id: str, registration: Any) -> Any:
    """Return what a decode's worker is given for a request that is to be pushed to it."""
    metadata = NixlConnectorMetadata()
    metadata.reqs_to_recv[req_id] = rig.meta_of(req_id)
    metadata.push_registrations[req_id] = registration
    return metadata


def registration_of(*blocks: int) -> dict[str, Any]:
    remote = {"remote_host": "host", "remote_port": 1, "remote_tp_size": 1}
    return {**GOOD, "local_block_ids": [list(blocks)], "remote_engine_id": rig.ENGINE, **remote}


def meets_disconnect(agent: ScriptedAgent, worker: Any) -> None:
    """Have a heartbeat see a connection gone that is there again afterwards."""
    agent.refuse_notifs(rig.AGENT, error=nixlRemoteDisconnectError("gone"))
    worker._send_heartbeats(rig.heartbeat("r"))
    agent.allow_notifs(rig.AGENT)


def connect_again(worker: Any) -> None:
    worker._remote_agents[rig.ENGINE] = {(0, 0): rig.AGENT}


def test_a_request_that_has_failed_is_not_registered(backend: str) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    worker.start_load_kv(waiting("r", registration_of(1, 2)))
    meets_disconnect(agent, worker)
    worker.get_transfer_results()
    assert worker.get_transfer_results().failed_recving == {"r"}
    assert worker.get_block_ids_with_load_errors() == {1, 2}
    connect_again(worker)
    old = worker._reg_send_inbox.get_nowait()
    worker._send_registration_to_p(*old)  # the writer thread's turn
    assert agent.sent == []  # the blocks are another request's

    worker.start_load_kv(waiting("r", registration_of(3, 4)))  # a client tries again, with the same id
    worker._send_registration_to_p(*old)
    assert agent.sent == []
    worker._send_registration_to_p(*worker._reg_send_inbox.get_nowait())
    assert [peer for peer, _ in agent.sent] == [rig.AGENT]


def test_a_request_whose_registration_is_on_its_way_is_not_failed(backend: str) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    worker.start_load_kv(waiting("r", registration_of(1, 2)))
    meets_disconnect(agent, worker)
    failed: list[set[str]] = []
    send = agent.send_notif

    def sending(*args: Any, **kwargs: Any) -> Any:
        failed.append(worker.get_transfer_results().failed_recving)  # the main thread's turn, just here
        return send(*args, **kwargs)

    agent.send_notif = sending  # type: ignore[method-assign]
    worker._send_registration_to_p(*worker._reg_send_inbox.get_nowait())
    assert failed == [set()]
    assert len(agent.sent) == 1
    assert worker.get_transfer_results().failed_recving == set()  # its producer is writing


def told_of_an_abort(req_id: str) -> Any:
    """Return what vLLM's scheduler has a worker told of a request that ends before it has blocks."""
    scheduler: Any = object.__new__(NixlPushConnectorScheduler)
    for name in ("_heartbeat_req_engine", "_heartbeat_by_engine", "_push_registration_deadlines"):
        setattr(scheduler, name, {})
    scheduler._reqs_need_recv = {}
    remote = {"remote_engine_id": rig.ENGINE, "remote_request_id": "p", "remote_host": "host"}
    given = {"do_remote_prefill": True, "do_remote_decode": False, "remote_port": 1, "tp_size": 1, **remote}
    request: Any = SimpleNamespace(
        request_id=req_id, kv_transfer_params=given, status=RequestStatus.FINISHED_ABORTED
    )
    assert scheduler.request_finished(request, ([],)) == (False, None)
    metadata = NixlConnectorMetadata()
    request, *rest = scheduler._reqs_need_recv[req_id]
    metadata.add_new_req_to_recv(req_id, rest[0], request.kv_transfer_params, *rest[1:])
    return metadata


def test_a_request_that_ended_before_it_had_blocks_is_not_failed(backend: str) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    worker.start_load_kv(told_of_an_abort("gone"))
    assert worker._recving_metadata == {}  # nor does it keep its engine, or count as a stall
    worker.start_load_kv(waiting("r", registration_of(1, 2)))
    assert list(worker._recving_metadata) == ["r"]
    meets_disconnect(agent, worker)
    ended = [worker.get_transfer_results() for _ in range(3)]
    assert set().union(*(results.finished_recving for results in ended)) == {"r"}
    assert worker.get_block_ids_with_load_errors() == {1, 2}


def test_a_request_without_blocks_that_fails_raises_nothing(backend: str) -> None:
    worker = push(ScriptedAgent(), ours=True, backend=backend)
    rig.receive(worker, "gone")
    worker._recving_metadata["gone"].local_block_ids = []
    worker._failed_recv_reqs.put("gone")
    assert worker.get_transfer_results().finished_recving == set()  # the scheduler does not know it
    assert worker._recving_metadata == {}
    assert worker.get_block_ids_with_load_errors() == set()


def test_a_registration_waits_for_its_engines_removal(backend: str) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    handshakes: list[str] = []
    worker._nixl_handshake = lambda *given: handshakes.append(given[3])
    worker._handshake_initiation_executor = ThreadPoolExecutor(1)
    in_the_removal(agent, lambda: worker._send_registration_to_p("r", registration_of(1)))
    worker._cleanup_remote_engine(rig.ENGINE)
    assert handshakes == []  # it would have found the engine half removed
    assert worker._reg_send_inbox.empty()
    worker.get_transfer_results()
    assert worker._reg_send_inbox.get_nowait() == ("r", registration_of(1))
    del worker._handshake_initiation_executor


def in_the_removal(agent: ScriptedAgent, call: Any) -> None:
    """Have the writer thread call something while an agent is being removed."""
    remove = agent.remove_remote_agent

    def removing(agent: str) -> None:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        remove(agent)

    agent.remove_remote_agent = removing  # type: ignore[method-assign]


# ---- on prefill

USELESS = (
    {"request_id": "r"},
    {**GOOD, "decode_engine_id": 7},
    {**GOOD, "decode_host": None},
    {**GOOD, "decode_port": "1"},
    {**GOOD, "decode_tp_size": 0},
    {**GOOD, "local_block_ids": 3},
    {**GOOD, "local_block_ids": [[1], 2]},
    {**GOOD, "local_block_ids": [["x"]]},
    {**GOOD, "local_block_ids": [[-1]]},
    [1, 2],
)


def prefill(backend: str) -> tuple[Any, list[str]]:
    worker = push(ScriptedAgent(), ours=True, backend=backend)
    pushed: list[str] = []
    worker._xfer_blocks_for_req = lambda req_id, meta: pushed.append(req_id)
    return worker, pushed


def arrives(worker: Any, registration: Any) -> None:
    worker._handle_push_reg_notif(b"PUSH_REG:" + rig.packed(registration))


@pytest.mark.parametrize("useless", USELESS, ids=str)
def test_a_useless_registration_does_not_cost_its_request_the_good_one(backend: str, useless: Any) -> None:
    worker, pushed = prefill(backend)
    worker._push_finished_blocks["r"] = ([1],)
    arrives(worker, useless)
    arrives(worker, GOOD)
    assert pushed == ["r"]
    assert worker._kvfast.stats.snapshot()["bad_notifs"] == 1


@pytest.mark.parametrize("useless", USELESS, ids=str)
def test_a_useless_registration_that_comes_first_is_not_kept(backend: str, useless: Any) -> None:
    worker, pushed = prefill(backend)
    arrives(worker, useless)
    assert worker._pending_d_registrations == {}
    worker._finished_blocks_inbox.put(("r", ([1],)))
    writer = threading.Thread(target=worker._push_writer_loop)
    writer.start()
    deadline = time.monotonic() + 60
    while not worker._finished_blocks_inbox.empty() and time.monotonic() < deadline:
        time.sleep(0.001)
    worker._push_writer_stop.set()
    worker._push_writer_wake.set()
    writer.join()
    assert worker._push_finished_blocks == {"r": ([1],)}  # they wait for the good one
    assert worker._kvfast.stats.snapshot()["bad_notifs"] == 1
    arrives(worker, GOOD)
    assert pushed == ["r"]


@pytest.mark.parametrize("groups", [[[1], [2]], []], ids=str)
@pytest.mark.parametrize("first", ["blocks", "registrations"])
def test_another_number_of_groups_does_not_cost_a_request_its_good_registration(
    backend: str, groups: Any, first: str
) -> None:
    worker, pushed = prefill(backend)
    if first == "blocks":
        worker._push_finished_blocks["r"] = ([1],)
    useless = {**GOOD, "local_block_ids": groups}
    arrives(worker, useless)
    if first == "registrations":
        found = worker._pop_matching_registration("r")
        worker._do_start_push_kv("r", ([1],), found)  # as the writer thread does when the request ends
    assert worker._push_finished_blocks == {"r": ([1],)}
    arrives(worker, GOOD)
    assert pushed == ["r"]
    assert worker._push_finished_blocks == worker._pending_d_registrations == {}
    assert worker._kvfast.stats.snapshot()["bad_notifs"] == 1


def test_of_several_registrations_a_request_takes_one_that_fits(backend: str) -> None:
    worker, pushed = prefill(backend)
    for suffix, groups in (("aaaaaaaa", [[1], [2]]), ("bbbbbbbb", [[1, 2]])):
        arrives(worker, {**GOOD, "request_id": f"x-{suffix}", "local_block_ids": groups})
    worker._do_start_push_kv("x-cccccccc", ([1],), worker._pop_matching_registration("x-cccccccc"))
    assert pushed == ["x-cccccccc"]
    assert worker._push_finished_blocks == worker._pending_d_registrations == {}


@pytest.mark.parametrize("blocks", [[1, 2], [[1], [2]], [[]]])
def test_what_vllm_can_push_is_good(backend: str, blocks: Any) -> None:
    worker, pushed = prefill(backend)
    worker._push_finished_blocks["r"] = ([1], [2])[: len(blocks) if isinstance(blocks[0], list) else 1]
    arrives(worker, {**GOOD, "local_block_ids": blocks, "remote_pp_size": 2})
    assert pushed == ["r"]
