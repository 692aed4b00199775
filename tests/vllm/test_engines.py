"""When an engine's state goes: who is dead, what waits for it, and what two threads do at once."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("vllm")

from kvfast.testing import ScriptedAgent, nixlBackendError, nixlNotFoundError, nixlRemoteDisconnectError
from kvfast.vllm.versions import check_vllm
from tests.vllm import rig
from tests.vllm.test_better_than_stock import BACKENDS, StaysTrueAgent, posted, pull, push
from tests.vllm.test_registrations import GOOD, in_the_removal


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def reads(worker: Any, req_id: str, handle: Any) -> None:
    with worker._recving_transfers.of_peer(rig.AGENT):
        rig.receive(worker, req_id, handle)


def writes(worker: Any, req_id: str, handle: Any) -> None:
    worker._sending_transfers.note_peer(handle, rig.AGENT)
    rig.sending(worker, req_id, handle)


def connect_again(worker: Any) -> None:
    """As after a handshake with a process that lives: its agent has the same name."""
    worker._remote_agents[rig.ENGINE] = {(0, 0): rig.AGENT}


# ---- old news of a new connection


def test_a_new_connection_does_not_suffer_for_the_old_one(backend: str) -> None:
    if not check_vllm().marks_invalid_engines:
        pytest.skip("no invalid engines in this vLLM")
    agent = StaysTrueAgent()
    worker = pull(agent, ours=True, backend=backend)
    reads(worker, "r", posted(agent, "DISCONNECT"))
    assert worker.get_transfer_results().failed_recving == {"r"}
    assert worker._remote_agents == {}
    connect_again(worker)
    reads(worker, "next", posted(agent, "PROC"))
    assert worker.get_transfer_results().failed_recving == set()
    assert worker._invalid_remote_engines == set()
    assert worker._invalid_engine_backoff[rig.ENGINE][0] == 0.0


def test_a_request_of_a_new_connection_does_not_fail_for_the_old_one(backend: str) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    writes(worker, "sent", posted(agent, "DISCONNECT"))
    worker.get_transfer_results()
    assert worker._remote_agents == {}
    connect_again(worker)
    rig.receive(worker, "fresh")  # registered over the new connection: its blocks are being written
    assert worker.get_transfer_results().failed_recving == set()
    assert worker.get_block_ids_with_load_errors() == set()


def test_a_handshake_makes_old_news_of_what_was_seen_before(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    worker._remote_agents = {}
    worker._kvfast_found_dead(rig.AGENT, None)
    agents = {(0, 0): rig.AGENT}
    stock = rig.STOCK["push"].__mro__[1]
    monkeypatch.setattr(stock, "_nixl_handshake", lambda *_: (agents, 0.0))
    worker._remote_agents[rig.ENGINE], _ = worker._nixl_handshake("host", 1, 1, rig.ENGINE)
    rig.receive(worker, "r")
    assert worker.get_transfer_results().failed_recving == set()


def test_a_write_that_meets_the_disconnect_fails_the_requests_that_wait(backend: str) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    rig.receive(worker, "waits", blocks=(4, 5))
    rig.receive(worker, "other", engine="engine-q")
    writes(worker, "sent", posted(agent, "DISCONNECT"))
    ends = [worker.get_transfer_results().failed_recving for _ in range(3)]
    assert set().union(*ends) == {"waits"}
    assert worker.get_block_ids_with_load_errors() == {4, 5}
    assert list(worker._recving_metadata) == ["other"]


def test_a_write_that_meets_one_ranks_disconnect_fails_nobody(backend: str) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    worker._remote_agents[rig.ENGINE] = {(0, 0): rig.AGENT, (0, 1): "another"}
    rig.receive(worker, "waits")
    writes(worker, "sent", posted(agent, "DISCONNECT"))
    ends = [worker.get_transfer_results().failed_recving for _ in range(3)]
    assert set().union(*ends) == set()  # the other rank may be writing


# ---- what a producer said before it ended


def producer_ends(agent: ScriptedAgent, worker: Any) -> None:
    agent.refuse_notifs(rig.AGENT, error=nixlRemoteDisconnectError("gone"))
    worker._send_heartbeats(rig.heartbeat("r"))


def says(worker: Any, *messages: str) -> None:
    """Have the writer thread pass on what came before the end of the connection."""
    for message in messages:
        worker._pending_completion_notifs.put(message.encode())


@pytest.mark.parametrize("seen_by", ["heartbeat", "write"])
@pytest.mark.parametrize("passed_on", ["before", "meanwhile"])
def test_a_request_whose_writes_have_ended_is_not_failed(backend: str, passed_on: str, seen_by: str) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    rig.receive(worker, "r", blocks=(4, 5))
    rig.receive(worker, "half", blocks=(6, 7))
    if seen_by == "heartbeat":
        producer_ends(agent, worker)
    else:
        writes(worker, "sent", posted(agent, "DISCONNECT"))
    if passed_on == "before":
        says(worker, "r:1")
    ends = [worker.get_transfer_results()]
    if passed_on == "meanwhile":
        says(worker, "r:1")
    ends += [worker.get_transfer_results() for _ in range(3)]
    assert [end.failed_recving for end in ends if end.failed_recving] == [{"half"}]
    assert set().union(*(end.finished_recving for end in ends)) == {"r", "half"}
    assert worker.get_block_ids_with_load_errors() == {6, 7}


def test_a_request_that_two_ranks_write_is_done_when_both_have_said_so(backend: str) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    rig.receive(worker, "r")
    says(worker, "r:2")
    worker.get_transfer_results()
    producer_ends(agent, worker)
    worker.get_transfer_results()
    says(worker, "r:2")
    results = worker.get_transfer_results()
    assert (results.finished_recving, results.failed_recving) == ({"r"}, set())


def test_a_request_with_the_id_of_one_that_ended_is_not_failed_for_it(backend: str) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    rig.receive(worker, "r")
    producer_ends(agent, worker)
    worker.get_transfer_results()
    rig.receive(worker, "r")
    for _ in range(3):
        assert worker.get_transfer_results().failed_recving == set()


def test_a_request_is_doomed_once(backend: str) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    rig.receive(worker, "r")
    rig.receive(worker, "registers")
    worker._kvfast.registering.add("registers")  # so that its engine is looked at again
    warned: list[Any] = []
    worker._kvfast.warn = lambda key, *_: warned.append(key)
    producer_ends(agent, worker)
    for _ in range(4):
        worker.get_transfer_results()
    assert warned.count("waiting") == 1


# ---- what does not keep an engine, and what does not keep a read


def test_a_leak_does_not_keep_its_engine(backend: str) -> None:
    agent = ScriptedAgent()
    worker = pull(agent, ours=True, backend=backend)
    handshakes = rig.Handshakes(worker)
    handle = posted(agent, "DONE")
    agent.refuse_release(handle, error=nixlBackendError("busy"))
    reads(worker, "r", handle)
    assert worker.get_transfer_results().finished_recving == {"r"}
    worker._engine_last_active[rig.ENGINE] -= 2 * worker._engine_ttl
    worker._evict_stale_engines()
    assert agent.removed == [rig.AGENT]  # nothing of a DONE handle is in flight
    late = rig.meta_of("late")
    worker._recving_metadata["late"] = late
    begin_read(worker, "late", late)
    assert handshakes.begun == [rig.ENGINE]
    agent.allow_release(handle)


def begin_read(worker: Any, req_id: str, meta: Any) -> None:
    """Begin a read as vLLM's `start_load_kv` does; 0.31 looks for the handshake there."""
    if meta.remote.engine_id not in worker._remote_agents:
        worker._background_nixl_handshake(req_id, meta.remote.engine_id, meta)
    else:
        worker._read_blocks_for_req(req_id, meta)


def test_a_read_does_not_wait_for_another_engines_removal(backend: str) -> None:
    if not check_vllm().marks_invalid_engines:
        pytest.skip("this vLLM shakes hands before a read's start")
    agent = ScriptedAgent()
    worker = pull(agent, ours=True, backend=backend)
    handshakes = rig.Handshakes(worker)
    with worker._recving_transfers.of_peer(rig.AGENT):  # whose read, vLLM can't tell: it does not spare it
        worker._recving_transfers["r"].append(posted(agent, "PROC"))
    worker._engine_last_active[rig.ENGINE] -= 2 * worker._engine_ttl
    worker._read_blocks_for_req("new", rig.meta_of("new", engine="engine-new"))
    assert handshakes.begun == ["engine-new"]
    assert agent.removed == []
    assert list(worker._kvfast.removing) == [rig.ENGINE]


# ---- two threads


def test_an_engine_that_a_push_begins_with_stays(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    pushed: list[str] = []
    monkeypatch.setattr(
        rig.STOCK["push"], "_xfer_blocks_for_req", lambda worker, req_id, meta: pushed.append(req_id)
    )
    writes(worker, "sent", posted(agent, "DISCONNECT"))
    ensure = worker._ensure_handshake

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        pending = ensure(*args, **kwargs)
        worker.get_transfer_results()  # the main thread's turn, just here: it sees the disconnect
        return pending

    worker._ensure_handshake = interrupted
    worker._do_start_push_kv("r", ([1],), GOOD)
    assert pushed == ["r"]
    assert agent.removed == []
    worker.get_transfer_results()
    assert agent.removed == [rig.AGENT]
    assert worker._engine_last_active == {}  # or the next look for stale engines would fail


def test_a_push_does_not_shake_hands_with_a_half_removed_engine(backend: str) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    handshakes = rig.Handshakes(worker)
    rig.sending(worker, "r")
    in_the_removal(agent, lambda: worker._do_start_push_kv("r", ([1],), GOOD))
    writes(worker, "sent", posted(agent, "DISCONNECT"))
    worker.get_transfer_results()
    assert agent.removed == [rig.AGENT]
    assert handshakes.begun == []
    worker.get_transfer_results()
    assert worker._deferred_push_inbox.get_nowait() == ("r", ([1],), GOOD)


def test_a_heartbeat_does_not_shake_hands_with_a_half_removed_engine(backend: str) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    handshakes = rig.Handshakes(worker)
    in_the_removal(agent, lambda: worker._send_heartbeats(rig.heartbeat("r")))
    worker._cleanup_remote_engine(rig.ENGINE)  # by the writer thread, say, which finds it stale
    assert handshakes.begun == []
    worker._send_heartbeats(rig.heartbeat("r"))
    assert handshakes.begun == [rig.ENGINE]


def test_two_threads_do_not_remove_an_engine_twice(backend: str) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    raised: list[Exception] = []

    def evict() -> None:
        try:
            worker._cleanup_remote_engine(rig.ENGINE)
        except Exception as error:
            raised.append(error)

    in_the_removal(agent, evict)
    worker._cleanup_remote_engine(rig.ENGINE)
    evict()  # and it had listed the stale engines before
    assert (agent.removed, raised) == ([rig.AGENT], [])


def test_a_failure_that_is_told_while_others_are_forgotten_is_kept(backend: str) -> None:
    agent = ScriptedAgent()
    worker = pull(agent, ours=True, backend=backend)
    state = worker._kvfast
    handle = posted(agent, "PROC")

    class Told(list[Any]):
        def __iter__(self) -> Any:
            yield from super().__iter__()
            writer.start()  # at the end of the other thread's look at them
            writer.join(0.2)  # it may have to wait for that

    writer = threading.Thread(target=worker._try_release_xfer_handle, args=("late", handle))
    worker._log_failure = lambda **_: None
    told = Told()
    told.append(("ended", object()))
    state.told = told
    state.forget_told({"ended"})
    writer.join()
    assert state.was_told("late", handle)


# ---- what raises


def test_an_agent_that_can_not_be_removed_ends_no_poll(backend: str) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)

    def refuse(agent: str) -> None:
        raise nixlNotFoundError(agent)

    agent.remove_remote_agent = refuse  # type: ignore[method-assign]
    writes(worker, "sent", posted(agent, "DISCONNECT"))
    writes(worker, "good", posted(agent, "DONE"))
    assert worker.get_transfer_results().finished_sending == {"good"}
    assert worker._remote_agents == worker._engine_last_active == {}
    assert worker._kvfast.removing == {}


def test_shutdown_tries_what_is_aside(backend: str) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    rig.Handshakes(worker)
    read, written = posted(agent, "DONE"), posted(agent, "DONE")
    agent.refuse_release(read, written, error=nixlBackendError("busy"))
    reads(worker, "r", read)
    writes(worker, "w", written)
    results = worker.get_transfer_results()
    assert (results.finished_recving, results.finished_sending) == ({"r"}, {"w"})
    agent.allow_release(read, written)
    worker.shutdown()
    assert sorted(agent.released) == sorted([read, written])
    agent.assert_clean()
