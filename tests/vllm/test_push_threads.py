"""The push worker's two threads: one posts WRITEs and adds their handles, the other polls."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("vllm")

from kvfast.testing import ScriptedAgent
from tests.vllm import rig
from tests.vllm.test_better_than_stock import BACKENDS, posted, push


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_handles_that_the_writer_adds_in_a_poll_are_not_lost(backend: str) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    first, second = posted(agent, "DONE"), posted(agent, "PROC")
    rig.sending(worker, "r", first)
    release = agent.release_xfer_handle

    def releasing(handle: Any) -> None:
        release(handle)
        if handle == first:
            thread = threading.Thread(target=lambda: worker._sending_transfers["r"].extend([second]))
            thread.start()
            thread.join()

    agent.release_xfer_handle = releasing  # type: ignore[method-assign]
    assert worker.get_transfer_results().finished_sending == set()
    assert worker._sending_transfers["r"] == [second]
    agent.set_state(second, "DONE")
    assert worker.get_transfer_results().finished_sending == {"r"}


def test_handles_that_the_writer_adds_after_the_sweep_are_not_lost(backend: str) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    first, second = posted(agent, "DONE"), posted(agent, "PROC")
    rig.sending(worker, "r", first)
    take_in = worker._get_new_notifs

    def taking_in() -> Any:  # what vLLM does first in a poll, when the WRITEs were swept
        worker._sending_transfers["r"].extend([second])
        return take_in()

    worker._get_new_notifs = taking_in
    assert worker.get_transfer_results().finished_sending == set()
    worker._get_new_notifs = take_in
    agent.set_state(second, "DONE")
    assert worker.get_transfer_results().finished_sending == {"r"}
    agent.assert_drained()


@pytest.mark.parametrize("peers", [("a",), ("a", "b")])
def test_handles_that_end_while_they_are_added_are_reported(
    backend: str, peers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    transfers = worker._sending_transfers
    handles = [posted(agent, "DONE", peer=peer) for peer in peers]
    for handle, peer in zip(handles, peers):
        transfers.note_peer(handle, peer)
    rig.sending(worker, "r")
    ended: list[set[str]] = []
    table_class = type(transfers._table)
    add = table_class.add

    def adding(table: Any, *args: Any, **kwargs: Any) -> None:
        add(table, *args, **kwargs)
        ended.append(worker.get_transfer_results().finished_sending)  # as the other thread might, just then

    monkeypatch.setattr(table_class, "add", adding)
    transfers["r"].extend(handles)
    assert ended == [set() for _ in peers]
    assert worker.get_transfer_results().finished_sending == {"r"}
    assert worker.get_transfer_results().finished_sending == set()
    agent.assert_drained()


def test_an_engine_is_not_removed_while_something_is_posted(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ours in (False, True):
        agent = ScriptedAgent()
        worker = push(agent, ours=ours, backend=backend)
        removed: list[list[str]] = []

        def posting(worker: Any, req_id: str, meta: Any, seen: Any = removed) -> None:
            # What is posted here is in no container yet, and the other thread finds a dead peer.
            worker._cleanup_remote_engine(rig.ENGINE, log_eviction=False)
            seen.append(list(worker.nixl_wrapper.removed))

        monkeypatch.setattr(rig.STOCK["push"], "_xfer_blocks_for_req", posting)
        worker._xfer_blocks_for_req(req_id="r", meta=rig.meta_of("r"))
        assert removed == [[] if ours else [rig.AGENT]]
        worker.get_transfer_results()
        assert agent.removed == [rig.AGENT]


def test_an_engine_is_not_removed_while_a_handshake_is_going_on(backend: str) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    handle = posted(agent, "PROC")
    worker._sending_transfers.note_peer(handle, rig.AGENT)
    rig.sending(worker, "r", handle)
    worker._cleanup_remote_engine(rig.ENGINE)
    agent.set_state(handle, "DONE")
    worker._handshake_futures["another"] = object()
    worker.get_transfer_results()
    assert agent.removed == []  # its thread may be loading metadata into the agent
    worker._handshake_futures.clear()
    worker.get_transfer_results()
    assert agent.removed == [rig.AGENT]


@pytest.mark.parametrize("refusing", [("rank-0",), ("rank-0", "rank-1")])
def test_a_producer_that_was_told_where_to_write_may_still_write(
    backend: str, refusing: tuple[str, ...]
) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    worker._remote_agents[rig.ENGINE] = {(0, 0): "rank-0", (0, 1): "rank-1"}
    agent.refuse_notifs(*refusing)
    rig.receive(worker, "r")
    worker._do_send_reg_notif("r", {"remote_engine_id": rig.ENGINE})
    nobody_was_told = len(refusing) == 2
    assert worker.get_transfer_results().failed_recving == ({"r"} if nobody_was_told else set())


@pytest.mark.parametrize("end", ["DONE", "BACKEND"])
def test_a_start_that_failed_is_told_once(backend: str, end: str) -> None:
    agent = ScriptedAgent()
    worker = rig.make(rig.OURS["pull"], agent, backend=backend)
    logged: list[str] = []
    worker._log_failure = lambda failure_type, **_: logged.append(failure_type)
    handle = posted(agent, "PROC")
    rig.receive(worker, "r")
    worker._recving_transfers["r"].append(handle)
    assert not worker._handle_failed_transfer("r", handle, worker._recv_failures)  # as where it is posted
    worker.get_transfer_results()
    agent.set_state(handle, end)
    assert worker.get_transfer_results().failed_recving == {"r"}
    assert logged == ["transfer_release_failed"]
    assert len(worker.xfer_stats.data["num_failed_transfers"]) == 1
    assert worker._kvfast.told == []  # another handle may get its number
    agent.assert_drained()


def test_a_registration_that_can_not_be_used_costs_no_other(backend: str) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    worker._push_finished_blocks["r"] = ([1],)
    registration = b"PUSH_REG:" + rig.packed({"request_id": "r"})  # with no engine to write to
    worker._handle_push_reg_notif(registration)
    assert worker._kvfast.stats.snapshot()["bad_notifs"] == 1
    stock = push(agent, ours=False)
    stock._push_finished_blocks["r"] = ([1],)
    with pytest.raises(KeyError):
        stock._handle_push_reg_notif(registration)


def test_handles_that_were_posted_before_an_error_are_kept(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    handle = posted(agent, "PROC")

    def posting(worker: Any, req_id: str, meta: Any) -> None:
        worker._kvfast_posted(handle, request_id=req_id)
        raise KeyError("no such rank")

    monkeypatch.setattr(rig.STOCK["push"], "_xfer_blocks_for_req", posting)
    rig.sending(worker, "r", lease_s=-1.0)
    with pytest.raises(KeyError):
        worker._xfer_blocks_for_req(req_id="r", meta=rig.meta_of("r"))
    assert worker._sending_transfers == {"r": [handle]}
    assert worker.get_transfer_results().finished_sending == set()  # the WRITE still reads the blocks
    agent.set_state(handle, "DONE")
    worker.get_transfer_results()
    worker.get_transfer_results()
    assert len(worker.xfer_stats.data["num_kv_expired_reqs"]) == 1  # and it is no success
    agent.assert_drained()
