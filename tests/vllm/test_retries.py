"""A push whose handshake failed is made when decode asks again; stock drops it, and decode waits for ever."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("vllm")

import zmq

from kvfast.testing import FakeClock, ScriptedAgent
from kvfast.vllm.retries import Push, PushRetries
from tests.vllm import rig
from tests.vllm.test_better_than_stock import BACKENDS, push

AWAY = "engine-d2"  # nobody has shaken hands with it
BLOCKS = ([1],)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def take_step(worker: Any, *heard: str) -> Any:
    """Have a heartbeat for some requests come, an engine take a step, and its writer thread its turn."""
    if heard:
        worker._pending_completion_notifs.put(f"HB:{','.join(heard)}".encode())
    results = worker.get_transfer_results()
    while not worker._deferred_push_inbox.empty():
        worker._do_start_push_kv(*worker._deferred_push_inbox.get_nowait())
    return results


class Prefill:
    """A worker that is to push, with handshakes that end when and how a test says."""

    def __init__(self, worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.worker = worker
        self.pushed: list[tuple[str, Any]] = []
        worker._remote_agents.clear()
        self.handshakes = rig.Handshakes(worker).futures
        worker._log_failure = lambda **_: None
        monkeypatch.setattr(
            rig.STOCK["push"],
            "_xfer_blocks_for_req",
            lambda worker, req_id, meta: self.pushed.append((req_id, meta.local_block_ids)),
        )

    def match(self, req_id: str, blocks: Any = BLOCKS) -> None:
        """Have a request's blocks and its decode's registration found."""
        self.worker._do_start_push_kv(req_id, blocks, rig.registration(AWAY))

    def fail(self) -> None:
        self.handshakes[-1].set_exception(TimeoutError("no answer in 5 s"))

    def refused(self, *req_ids: str) -> FakeClock:
        """Have these requests be sent, and wait after a handshake that failed; return the worker's clock."""
        clock = rig.use_clock(self.worker)
        for req_id in req_ids:
            rig.sending(self.worker, req_id)
            self.match(req_id)
        self.fail()
        return clock

    def succeed(self) -> None:
        self.handshakes[-1].set_result(({(0, 0): "agent-d2"}, 0.0))

    def step(self, *heard: str) -> Any:
        return take_step(self.worker, *heard)


MakePrefill = Callable[..., Prefill]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> MakePrefill:
    def made(**options: Any) -> Prefill:
        return Prefill(push(ScriptedAgent(), **options), monkeypatch)

    return made


def note_writes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have WRITEs only noted: each request, and the blocks that it is written to."""
    written: list[Any] = []
    monkeypatch.setattr(
        rig.STOCK["push"],
        "_xfer_blocks_for_req",
        lambda worker, req_id, meta: written.append((req_id, meta.remote.block_ids)),
    )
    return written


def test_stock_drops_a_push_whose_handshake_fails(make: MakePrefill) -> None:
    prefill = make(ours=False)
    rig.sending(prefill.worker, "r")
    prefill.match("r")
    prefill.fail()
    for _ in range(3):
        prefill.step("r")
    assert (len(prefill.handshakes), prefill.pushed) == (1, [])
    assert "r" in prefill.worker._reqs_to_send  # though the blocks are held


def test_a_push_is_made_when_a_later_handshake_succeeds(backend: str, make: MakePrefill) -> None:
    prefill = make(ours=True, backend=backend)
    clock = prefill.refused("r")
    for wait_s in (1.0, 2.0, 4.0):
        known = len(prefill.handshakes)
        clock.advance(wait_s - 0.5)
        prefill.step("r")
        assert len(prefill.handshakes) == known  # not at every heartbeat
        clock.advance(0.5)
        prefill.step("r")
        assert len(prefill.handshakes) == known + 1
        if wait_s < 4.0:
            prefill.fail()
    assert prefill.pushed == []
    prefill.succeed()
    prefill.step()
    assert prefill.pushed == [("r", BLOCKS)]
    prefill.step("r")
    assert len(prefill.pushed) == 1
    assert prefill.worker._kvfast.retries._failures == {}  # the id may come again


def test_nothing_is_pushed_to_a_decode_that_asks_no_more(backend: str, make: MakePrefill) -> None:
    """It may have been cut off, have failed the request, and have given its blocks to another one."""
    prefill = make(ours=True, backend=backend)
    clock = prefill.refused("r", "s")
    clock.advance(60.0)
    prefill.step()
    assert len(prefill.handshakes) == 1
    prefill.step("s")
    prefill.succeed()
    prefill.step()
    prefill.step("s")
    assert prefill.pushed == [("s", BLOCKS)]


FIRST, SECOND = "cmpl-x-0-aaaaaaaa", "cmpl-x-0-cccccccc"  # one X-Request-Id, and vLLM's own suffixes


@pytest.mark.parametrize(
    ("first_handshake", "other", "expected"),
    [
        ("fails", None, ("engine-d3", [[9]])),
        ("fails", "sent", (AWAY, [[7]])),
        ("fails", "processed", (AWAY, [[7]])),
        ("succeeds", None, (AWAY, [[7]])),
    ],
)
def test_what_is_registered_meanwhile_counts(
    backend: str,
    make: MakePrefill,
    monkeypatch: pytest.MonkeyPatch,
    first_handshake: str,
    other: str | None,
    expected: Any,
) -> None:
    """The first decode was cut off, and another one goes on with what was prefilled; or it is another's."""
    prefill = make(ours=True, backend=backend)
    worker = prefill.worker
    written: list[Any] = []
    monkeypatch.setattr(
        rig.STOCK["push"],
        "_xfer_blocks_for_req",
        lambda worker, req_id, meta: written.append((meta.remote.engine_id, meta.remote.block_ids)),
    )
    clock = rig.use_clock(worker)
    rig.sending(worker, FIRST)
    if other == "sent":
        rig.sending(worker, SECOND)
    elif other == "processed":
        worker._reqs_to_process.add(SECOND)
    prefill.match(FIRST)
    worker._remote_agents["engine-d3"] = {(0, 0): "agent-d3"}
    newer = {"request_id": "cmpl-x-0-bbbbbbbb", "decode_engine_id": "engine-d3", "local_block_ids": [[9]]}
    worker._handle_push_reg_notif(b"PUSH_REG:" + rig.packed(rig.registration() | newer))
    if first_handshake == "fails":
        prefill.fail()
    else:
        prefill.succeed()
    clock.advance(1.0)
    prefill.step(FIRST)
    if not written:
        prefill.succeed()
        prefill.step(FIRST)
    assert written == [expected]
    taken = expected[0] != AWAY
    assert list(worker._pending_d_registrations) == ([] if taken else ["cmpl-x-0-bbbbbbbb"])


def test_what_is_registered_meanwhile_does_not_count_if_it_does_not_fit(
    backend: str, make: MakePrefill, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill = make(ours=True, backend=backend)
    written = note_writes(monkeypatch)
    clock = prefill.refused(FIRST)
    newer = {"request_id": "cmpl-x-0-bbbbbbbb", "local_block_ids": [[8], [9]]}
    prefill.worker._handle_push_reg_notif(b"PUSH_REG:" + rig.packed(rig.registration(AWAY) | newer))
    clock.advance(1.0)
    prefill.step(FIRST)
    prefill.succeed()
    prefill.step()
    assert written == [(FIRST, [[7]])]
    assert prefill.worker._push_finished_blocks == {}


def test_two_requests_with_one_id_are_each_written_where_they_registered(
    backend: str, make: MakePrefill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The push of the first one waits for the first handshake meanwhile, and nothing fails."""
    prefill = make(ours=True, backend=backend)
    worker = prefill.worker
    written = note_writes(monkeypatch)
    prefill.match(FIRST)
    newer = {"request_id": "cmpl-x-0-bbbbbbbb", "local_block_ids": [[9]]}
    worker._handle_push_reg_notif(b"PUSH_REG:" + rig.packed(rig.registration(AWAY) | newer))
    prefill.succeed()
    rig.sending(worker, FIRST)
    prefill.step()
    worker._do_start_push_kv(SECOND, BLOCKS, worker._pop_matching_registration(SECOND))
    assert written == [(FIRST, [[7]]), (SECOND, [[9]])]


def test_pushes_that_waited_for_one_handshake_are_all_made(backend: str, make: MakePrefill) -> None:
    prefill = make(ours=True, backend=backend)
    clock = prefill.refused("r", "s")
    clock.advance(1.0)
    prefill.step("r", "s")
    assert len(prefill.handshakes) == 2  # one for both, each time
    prefill.succeed()
    prefill.step()
    assert sorted(prefill.pushed) == [("r", BLOCKS), ("s", BLOCKS)]


def test_a_push_that_can_not_be_posted_is_forgotten(
    backend: str, make: MakePrefill, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill = make(ours=True, backend=backend)
    clock = prefill.refused("r")
    clock.advance(1.0)
    prefill.step("r")
    prefill.succeed()

    def refuse(worker: Any, req_id: str, meta: Any) -> None:
        raise NotImplementedError("other layouts")

    monkeypatch.setattr(rig.STOCK["push"], "_xfer_blocks_for_req", refuse)
    with pytest.raises(NotImplementedError):
        prefill.step()
    assert prefill.worker._kvfast.retries._failures == {}
    assert prefill.worker._kvfast.retries._waiting == []


def end_of_lease(worker: Any) -> None:
    worker._reqs_to_send["r"] = time.perf_counter() - 1.0


def end_by_notification(worker: Any) -> None:
    del worker._reqs_to_send["r"]  # as 0.31 and 0.32 do then


@pytest.mark.parametrize("end", [end_of_lease, end_by_notification])
def test_nothing_is_pushed_once_a_request_has_ended(
    backend: str, make: MakePrefill, end: Callable[[Any], None]
) -> None:
    prefill = make(ours=True, backend=backend)
    clock = prefill.refused("r")
    end(prefill.worker)  # and its blocks may be another's
    prefill.step()
    assert prefill.worker._kvfast.retries._waiting == []
    clock.advance(60.0)
    for number in range(5000):  # more than is remembered of such ends
        prefill.worker._kvfast.sends.withdraw(str(number))
    prefill.step("r")
    assert (len(prefill.handshakes), prefill.pushed) == (1, [])
    assert prefill.worker._kvfast.retries._failures == {}


def test_a_heartbeat_for_a_request_that_has_just_ended_starts_nothing(
    backend: str, make: MakePrefill
) -> None:
    prefill = make(ours=True, backend=backend)
    clock = prefill.refused("r")
    clock.advance(60.0)
    end_by_notification(prefill.worker)
    prefill.step("r")
    assert (len(prefill.handshakes), prefill.pushed) == (1, [])


def test_a_heartbeat_extends_leases_as_it_did(backend: str, make: MakePrefill) -> None:
    worker = make(ours=True, backend=backend).worker
    rig.sending(worker, "r", lease_s=5.0)
    before = worker._reqs_to_send["r"]
    take_step(worker, "r")
    assert worker._reqs_to_send["r"] > before


def test_a_handshake_that_fails_before_anybody_waits_for_it(backend: str, make: MakePrefill) -> None:
    prefill = make(ours=True, backend=backend)
    clock = rig.use_clock(prefill.worker)

    def refused(*_: Any, **__: Any) -> Future[Any]:
        handshake: Future[Any] = Future()
        handshake.set_exception(TimeoutError("no answer in 5 s"))
        return handshake

    prefill.worker._ensure_handshake = refused
    rig.sending(prefill.worker, "r")
    prefill.match("r")
    del prefill.worker._ensure_handshake
    clock.advance(1.0)
    prefill.step("r")
    prefill.succeed()
    prefill.step()
    assert prefill.pushed == [("r", BLOCKS)]


def test_a_handshake_that_shutdown_cancels_is_not_tried_again(backend: str, make: MakePrefill) -> None:
    worker = make(ours=True, backend=backend).worker
    clock = rig.use_clock(worker)
    handshake: Future[Any] = Future()
    assert handshake.cancel()
    worker._kvfast_handshake_ended(handshake, ("r", BLOCKS, {}))
    clock.advance(60.0)
    assert worker._kvfast.retries._waiting == []


def test_the_wait_grows_up_to_half_a_minute_and_begins_anew() -> None:
    clock = FakeClock()
    retries = PushRetries(clock)
    pushes: list[Push] = [("r", (n,), {}) for n in range(7)]
    assert [retries.failed(push) for push in pushes] == [1, 2, 4, 8, 16, 30, 30]
    clock.advance(8.0)
    assert retries.take_due({"r"}) == pushes[:4]
    assert retries.take_due({"r"}) == []
    clock.advance(100.0)
    assert retries.take_due({"s"}) == []
    assert retries.take_due({"r"}) == pushes[4:]
    assert {retries.failed(("r", (), {})) for _ in range(2000)} == {30}
    retries.forget("r")
    assert retries.failed(("r", (), {})) == 1


def test_a_decode_that_does_not_answer_a_handshake_is_asked_again() -> None:
    """With vLLM's own handshake, executor and socket; the listener takes questions and answers none."""
    worker = push(ScriptedAgent(), ours=True)
    worker._remote_agents.clear()
    worker._log_failure = lambda **_: None
    worker.use_host_buffer = True  # a CPU's, which needs no device
    worker.transfer_topo.handshake_target_ranks = lambda *_: [0]
    with (
        ThreadPoolExecutor(1) as worker._handshake_initiation_executor,
        zmq.Context() as context,
        context.socket(zmq.ROUTER) as listener,
    ):
        port = listener.bind_to_random_port("tcp://127.0.0.1")
        rig.sending(worker, "r")
        worker._do_start_push_kv("r", BLOCKS, rig.registration(AWAY, "127.0.0.1", port))
        questions = 0
        deadline = time.monotonic() + 60
        while questions < 2 and time.monotonic() < deadline:
            take_step(worker, "r")
            questions += bool(listener.poll(10) and listener.recv_multipart())
    assert questions == 2
