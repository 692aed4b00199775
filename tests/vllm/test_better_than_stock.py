"""Each thing that kvfast does better than vLLM's own workers, beside what they do.

What stock does is asserted as it is, so that we notice when vLLM mends it.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

pytest.importorskip("vllm")

from kvfast.testing import (
    ScriptedAgent,
    nixlBackendError,
    nixlNotFoundError,
    nixlRemoteDisconnectError,
)
from kvfast.vllm.versions import check_vllm
from tests.vllm import rig

BACKENDS = ("cython", "python")


def make(mode: str, agent: Any, *, ours: bool, **options: Any) -> Any:
    """Return a worker; a stock one takes no options."""
    if ours:
        return rig.make(rig.OURS[mode], agent, **options)
    return rig.make(rig.STOCK[mode], agent)


def pull(agent: Any, *, ours: bool, **options: Any) -> Any:
    return make("pull", agent, ours=ours, **options)


def push(agent: Any, *, ours: bool, **options: Any) -> Any:
    return make("push", agent, ours=ours, **options)


def posted(agent: ScriptedAgent, *states: Any, peer: str = rig.AGENT) -> Any:
    handle = agent.prepare(peer=peer)
    agent.transfer(handle)
    agent.set_state(handle, *states)
    return handle


def failed_transfers(worker: Any) -> int:
    return len(worker.xfer_stats.data["num_failed_transfers"])


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_telemetry_that_raises_after_done(backend: str) -> None:
    agent = ScriptedAgent()
    stock = pull(agent, ours=False)
    handle = posted(agent, "DONE")
    agent.refuse_telemetry(handle)
    rig.receive(stock, "r", handle)
    assert stock.get_transfer_results().failed_recving == {"r"}

    ours = pull(agent, ours=True, backend=backend)
    handles = [posted(agent, "DONE"), posted(agent, "DONE")]
    agent.refuse_telemetry(*handles)
    rig.receive(ours, "r", *handles)
    results = ours.get_transfer_results()
    assert (results.finished_recving, results.failed_recving) == ({"r"}, set())
    assert failed_transfers(ours) == 0
    assert not agent.unreleased


def test_release_that_raises_after_done(backend: str) -> None:
    agent = ScriptedAgent()
    stock = pull(agent, ours=False)
    handle = posted(agent, "DONE")
    agent.refuse_release(handle)
    rig.receive(stock, "r", handle)
    assert stock.get_transfer_results().finished_recving == set()
    assert failed_transfers(stock) == 1
    assert len(stock.xfer_stats.data["transfer_duration"]) == 1  # and counted as a success before

    ours = pull(agent, ours=True, backend=backend)
    handle = posted(agent, "DONE")
    agent.refuse_release(handle, error=nixlBackendError("busy"))
    rig.receive(ours, "r", handle)
    results = ours.get_transfer_results()
    assert (results.finished_recving, results.failed_recving) == ({"r"}, set())
    assert failed_transfers(ours) == 0
    assert len(ours.xfer_stats.data["transfer_duration"]) == 1
    assert handle in agent.unreleased  # kept, and tried again


def test_a_retained_failure_is_counted_once(backend: str) -> None:
    agent = ScriptedAgent()
    for ours, counted in ((False, 5), (True, 1)):
        worker = pull(agent, ours=ours, backend=backend)
        handle = posted(agent, "BACKEND")
        agent.refuse_release(handle)
        rig.receive(worker, "r", handle)
        logged: list[str] = []
        worker._log_failure = lambda failure_type, **_: logged.append(failure_type)  # noqa: B023
        for _ in range(5):
            assert worker.get_transfer_results().finished_recving == set()
        assert failed_transfers(worker) == counted
        assert logged.count("transfer_exception") == counted
        assert "r" in worker._recving_transfers


def test_a_refused_release_is_tried_again_at_the_next_step(backend: str) -> None:
    agent = ScriptedAgent()
    for ours in (False, True):
        worker = pull(agent, ours=ours, backend=backend)
        handle = posted(agent, "BACKEND")
        agent.refuse_release(handle)
        rig.receive(worker, "r", handle)
        worker.get_transfer_results()
        agent.allow_release(handle)
        assert worker.get_transfer_results().failed_recving == {"r"}


def test_a_lost_handle_is_quarantined(backend: str) -> None:
    agent = ScriptedAgent()
    stock = pull(agent, ours=False)
    handle = posted(agent, "NOT_FOUND")
    rig.receive(stock, "r", handle)
    assert stock.get_transfer_results().failed_recving == {"r"}  # its bytes may land after this
    assert handle in agent.released

    ours = pull(agent, ours=True, backend=backend, lost_s=7.0)
    clock = rig.use_clock(ours)
    handle = posted(agent, "NOT_FOUND")
    rig.receive(ours, "r", handle)
    assert ours.get_transfer_results().finished_recving == set()
    clock.advance(6.9)
    assert ours.get_transfer_results().finished_recving == set()
    assert handle not in agent.released
    assert ours.get_block_ids_with_load_errors() == set()
    clock.advance(0.2)
    results = ours.get_transfer_results()
    assert (results.finished_recving, results.failed_recving) == ({"r"}, {"r"})
    assert handle in agent.released
    assert ours.get_block_ids_with_load_errors() == {1, 2}


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_an_engine_is_not_removed_under_its_transfers(backend: str, mode: str) -> None:
    for ours in (False, True):
        agent = ScriptedAgent()
        worker = make(mode, agent, ours=ours, backend=backend)
        handle = posted(agent, "PROC", peer=rig.AGENT)
        start(worker, mode, handle)
        worker._cleanup_remote_engine(rig.ENGINE, log_eviction=False)
        assert agent.removed == ([] if ours else [rig.AGENT])
        assert bool(agent.violations) == (not ours)
        if not ours:
            continue
        worker.get_transfer_results()
        assert agent.removed == []
        agent.set_state(handle, "DONE")
        worker.get_transfer_results()
        assert agent.removed == [rig.AGENT]
        assert rig.ENGINE not in worker._remote_agents
        agent.assert_clean()


def start(worker: Any, mode: str, handle: Any) -> None:
    if mode == "pull":
        rig.receive(worker, "r", handle)
        return
    rig.sending(worker, "r")
    if hasattr(worker._sending_transfers, "note_peer"):
        worker._sending_transfers.note_peer(handle, rig.AGENT)
    worker._sending_transfers["r"].extend([handle])


def test_an_idle_engine_with_writes_in_flight_is_not_evicted(backend: str) -> None:
    for ours in (False, True):
        agent = ScriptedAgent()
        worker = push(agent, ours=ours, backend=backend)
        start(worker, "push", posted(agent, "PROC"))
        worker._engine_ttl, worker._engine_last_active = 1.0, {rig.ENGINE: -1e9}
        worker._evict_stale_engines()
        assert agent.removed == ([] if ours else [rig.AGENT])


def test_a_read_waits_for_its_engines_removal(backend: str) -> None:
    agent = ScriptedAgent()
    ours = pull(agent, ours=True, backend=backend)
    handle = posted(agent, "PROC")
    rig.receive(ours, "r", handle)
    ours._cleanup_remote_engine(rig.ENGINE)
    late = rig.meta_of("late")
    ours._read_blocks_for_req("late", late)
    ours.get_transfer_results()
    assert ours._ready_requests.empty()
    agent.set_state(handle, "DONE")
    ours.get_transfer_results()
    assert ours._ready_requests.get_nowait() == ("late", late)  # it will shake hands anew
    agent.assert_clean()


def test_a_changed_registration_waits_for_reads(backend: str) -> None:
    if not check_vllm().registration_generations:
        pytest.skip("no registration generations in this vLLM")
    for ours in (False, True):
        agent = ScriptedAgent()
        worker = pull(agent, ours=ours, backend=backend)
        worker._background_nixl_handshake = lambda *_: None
        rig.receive(worker, "r", posted(agent, "PROC"))
        worker._read_blocks_for_req("late", rig.meta_of("late", registration_generation=1))
        assert agent.removed == ([] if ours else [rig.AGENT])


def test_the_writer_thread_does_not_wait_for_a_poll(backend: str) -> None:
    for ours in (False, True):
        agent = ScriptedAgent()
        worker = push(agent, ours=ours, backend=backend)
        handle = posted(agent, "PROC")
        rig.sending(worker, "r", handle)
        lock_was_free: list[bool] = []
        check = agent.check_xfer_state

        def checking(asked: Any, check: Any = check, worker: Any = worker, seen: Any = lock_was_free) -> Any:
            def writer() -> None:
                free = worker._sending_transfers_lock.acquire(blocking=False)
                seen.append(free)
                if free:
                    worker._sending_transfers_lock.release()

            thread = threading.Thread(target=writer)
            thread.start()
            thread.join()
            return check(asked)

        agent.check_xfer_state = checking  # type: ignore[assignment, method-assign]
        worker.get_transfer_results()
        assert lock_was_free == [ours]


def test_an_expired_lease_keeps_blocks_under_a_write(backend: str) -> None:
    for ours in (False, True):
        agent = ScriptedAgent()
        worker = push(agent, ours=ours, backend=backend)
        handle = posted(agent, "PROC")
        rig.sending(worker, "r", handle, lease_s=-1.0)
        assert worker.get_transfer_results().finished_sending == (set() if ours else {"r"})
        agent.set_state(handle, "DONE")
        assert worker.get_transfer_results().finished_sending == ({"r"} if ours else set())


def test_a_failed_write_under_an_expired_lease_ends_as_expired(backend: str) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    handle = posted(agent, "PROC")
    rig.sending(worker, "r", handle, lease_s=-1.0)
    assert worker.get_transfer_results().finished_sending == set()
    agent.set_state(handle, "BACKEND")
    ends = [worker.get_transfer_results().finished_sending for _ in range(3)]
    assert ends == [set(), {"r"}, set()]  # no success, and then the lease's end, which is reported as such
    assert len(worker.xfer_stats.data["num_kv_expired_reqs"]) == 1


def test_nothing_is_pushed_after_the_lease(backend: str) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    rig.sending(worker, "r", lease_s=-1.0)
    assert worker.get_transfer_results().finished_sending == {"r"}
    worker._xfer_blocks_for_req(req_id="r", meta=rig.meta_of("r"))  # would fail for want of tables
    assert agent.posted == []


MALFORMED = (b"no-count", b"r:many", b"r:-1", b"\xff\xfe:1", b"", b":1")


@pytest.mark.parametrize("raw", MALFORMED)
@pytest.mark.parametrize("mode", ["pull", "push"])
def test_a_malformed_notification_is_ignored(backend: str, raw: bytes, mode: str) -> None:
    agent = ScriptedAgent()
    ours = make(mode, agent, ours=True, backend=backend)
    deliver(ours, agent, raw, b"r:1")
    if mode == "pull":
        rig.sending(ours, "r")
        assert ours.get_transfer_results().finished_sending == {"r"}
    else:
        rig.receive(ours, "r")
        assert ours.get_transfer_results().finished_recving == {"r"}
    assert ours._kvfast.stats.snapshot()["bad_notifs"] == 1


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_a_malformed_notification_ends_a_stock_engine(mode: str) -> None:
    agent = ScriptedAgent()
    stock = make(mode, agent, ours=False)
    deliver(stock, agent, b"no-count")
    with pytest.raises(ValueError, match="unpack"):
        stock.get_transfer_results()


def test_a_notification_that_vllm_can_not_take_in_harms_no_other(backend: str) -> None:
    def refuse(payload: str) -> None:
        raise AssertionError(payload)

    for ours in (False, True):
        for mode in ("pull", "push"):
            agent = ScriptedAgent()
            worker = make(mode, agent, ours=ours, backend=backend)
            worker._handle_heartbeat = refuse
            deliver(worker, agent, b"HB:x", b"r:1")
            rig.sending(worker, "r") if mode == "pull" else rig.receive(worker, "r")
            if not ours:
                with pytest.raises(AssertionError, match="x"):
                    worker.get_transfer_results()
                continue
            results = worker.get_transfer_results()
            assert results.finished_sending | results.finished_recving == {"r"}
            assert worker._kvfast.stats.snapshot()["bad_notifs"] == 1


def deliver(worker: Any, agent: ScriptedAgent, *raws: bytes) -> None:
    for raw in raws:
        if worker._TRANSFER_MODE == "push":
            worker._pending_completion_notifs.put(raw)
        else:
            agent.deliver_notif(rig.AGENT, raw)


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_shutdown_tries_everything(backend: str, mode: str) -> None:
    for ours in (False, True):
        agent = RefusingAgent()
        worker = make(mode, agent, ours=ours, backend=backend)
        worker._handshake_initiation_executor = type("Pool", (), {"shutdown": lambda self, wait: None})()
        rig.receive(worker, "r", posted(agent, "BACKEND"), posted(agent, "BACKEND"))
        worker.src_xfer_handles_by_block_size = {16: 7, 32: 8}
        worker._registered_descs = ["a", "b"]
        tries: list[str] = agent.tries
        if ours:
            worker.shutdown()
            assert tries.count("release_xfer_handle") >= 2
            assert tries.count("release_dlist_handle") == 2
            assert tries.count("deregister_memory") == 2
            assert worker._registered_descs == []
        else:
            with pytest.raises(RuntimeError):
                worker.shutdown()
            assert tries == ["release_xfer_handle"]


class RefusingAgent(ScriptedAgent):
    """Refuses every clean-up."""

    def __init__(self) -> None:
        super().__init__()
        self.tries: list[str] = []

    def release_xfer_handle(self, handle: Any) -> None:
        self.refuse("release_xfer_handle")

    def release_dlist_handle(self, handle: Any) -> None:
        self.refuse("release_dlist_handle")

    def deregister_memory(self, descs: Any) -> None:
        self.refuse("deregister_memory")

    def refuse(self, what: str) -> None:
        self.tries.append(what)
        raise RuntimeError(what)


class StaysTrueAgent(ScriptedAgent):
    """As NIXL 1.5.1: the metadata of a killed peer stays."""

    def check_remote_metadata(self, agent: str) -> bool:
        return True


def test_a_disconnect_marks_the_engine(backend: str) -> None:
    for ours in (False, True):
        agent = StaysTrueAgent()
        worker = pull(agent, ours=ours, backend=backend)
        rig.receive(worker, "r", posted(agent, "DISCONNECT"), posted(agent, "DISCONNECT"))
        results = worker.get_transfer_results()
        assert results.failed_recving == {"r"}
        assert agent.removed == ([rig.AGENT] if ours else [])
        assert (rig.ENGINE in worker._remote_agents) == (not ours)


def test_a_dead_engine_is_not_marked_invalid_twice(backend: str) -> None:
    if not check_vllm().marks_invalid_engines:
        pytest.skip("no invalid engines in this vLLM")
    agent = StaysTrueAgent()
    worker = pull(agent, ours=True, backend=backend)
    late = posted(agent, "PROC")
    rig.receive(worker, "r", posted(agent, "DISCONNECT"), posted(agent, "DISCONNECT"))
    rig.receive(worker, "s", late)
    worker.get_transfer_results()
    assert worker._invalid_remote_engines == {rig.ENGINE}
    assert worker._invalid_engine_backoff[rig.ENGINE][0] == 0.0
    assert agent.removed == []  # "s" is still outstanding


@pytest.mark.parametrize("how", ["heartbeat", "registration"])
def test_a_killed_prefill_fails_the_requests_that_wait(backend: str, how: str) -> None:
    for ours in (False, True):
        agent = ScriptedAgent()
        agent.refuse_notifs(rig.AGENT, error=nixlRemoteDisconnectError("gone"))
        worker = push(agent, ours=ours, backend=backend)
        rig.receive(worker, "r", blocks=(4, 5))
        rig.receive(worker, "other", engine="engine-q")
        if how == "heartbeat":
            worker._send_heartbeats(rig.heartbeat("r"))
        else:
            worker._do_send_reg_notif("r", {"remote_engine_id": rig.ENGINE})
        failed = [worker.get_transfer_results().failed_recving for _ in range(2)]
        assert set().union(*failed) == ({"r"} if ours else set())
        assert worker.get_block_ids_with_load_errors() == ({4, 5} if ours else set())
        assert "other" in worker._recving_metadata


def test_an_engine_is_dead_when_all_its_agents_are(backend: str) -> None:
    agent = ScriptedAgent()
    worker = push(agent, ours=True, backend=backend)
    worker._remote_agents[rig.ENGINE] = {(0, 0): "rank-0", (0, 1): "rank-1"}
    rig.receive(worker, "r")
    agent.refuse_notifs("rank-0", error=nixlRemoteDisconnectError("gone"))
    worker._send_heartbeats(rig.heartbeat("r"))
    for _ in range(3):
        assert worker.get_transfer_results().failed_recving == set()  # rank 1 may still be writing
    agent.refuse_notifs("rank-1", error=nixlRemoteDisconnectError("gone"))
    worker._send_heartbeats(rig.heartbeat("r"))
    assert worker.get_transfer_results().failed_recving == set()  # or have said so
    assert worker.get_transfer_results().failed_recving == {"r"}


def test_a_notification_that_fails_otherwise_kills_nobody(backend: str) -> None:
    agent = ScriptedAgent()
    agent.refuse_notifs(rig.AGENT, error=nixlNotFoundError("what?"))
    worker = push(agent, ours=True, backend=backend)
    rig.receive(worker, "r")
    worker._send_heartbeats(rig.heartbeat("r"))
    assert worker.get_transfer_results().failed_recving == set()


def test_a_long_wait_is_counted_once(backend: str) -> None:
    agent = ScriptedAgent()
    worker = pull(agent, ours=True, backend=backend, stall_after_s=0.001)
    rig.receive(worker, "r", posted(agent, "PROC"))
    deadline = time.monotonic() + 30
    while not worker._kvfast.stats.snapshot()["stalled_requests"] and time.monotonic() < deadline:
        worker.get_transfer_results()
    for _ in range(20):
        worker.get_transfer_results()
    assert worker._kvfast.stats.snapshot()["stalled_requests"] == 1
    assert "r" in worker._recving_transfers
