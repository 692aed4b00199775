"""A push whose handshake fails is made later; stock drops it, and decode waits for ever."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("vllm")

import zmq

from kvfast.testing import FakeClock, ScriptedAgent
from kvfast.vllm.retries import PushRetries
from tests.vllm import rig
from tests.vllm.test_better_than_stock import BACKENDS, push

AWAY = "engine-d2"  # nobody has shaken hands with it
BLOCKS = ([1],)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def registration_at(host: str, port: int) -> dict[str, Any]:
    """Return what a decode registers whose handshakes are taken there."""
    return {
        "request_id": "d-r",
        "decode_engine_id": AWAY,
        "decode_host": host,
        "decode_port": port,
        "decode_tp_size": 1,
        "local_block_ids": [[7]],
    }


def take_step(worker: Any) -> Any:
    """Have an engine take a step, and then its writer thread its turn."""
    results = worker.get_transfer_results()
    while not worker._deferred_push_inbox.empty():
        worker._do_start_push_kv(*worker._deferred_push_inbox.get_nowait())
    return results


class Prefill:
    """A worker that is to push, with handshakes that end when and how a test says."""

    def __init__(self, worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.worker = worker
        self.pushed: list[tuple[str, Any]] = []
        self.handshakes: list[Future[Any]] = []
        worker._remote_agents.clear()
        worker._handshake_initiation_executor = self
        worker._log_failure = lambda **_: None
        monkeypatch.setattr(
            rig.STOCK["push"],
            "_xfer_blocks_for_req",
            lambda worker, req_id, meta: self.pushed.append((req_id, meta.local_block_ids)),
        )

    def submit(self, *_: Any) -> Future[Any]:
        self.handshakes.append(Future())
        return self.handshakes[-1]

    def shutdown(self, wait: bool) -> None:
        return None

    def match(self, req_id: str, blocks: Any = BLOCKS) -> None:
        """Have a request's blocks and its decode's registration found."""
        self.worker._do_start_push_kv(req_id, blocks, registration_at("host", 1))

    def fail(self) -> None:
        self.handshakes[-1].set_exception(TimeoutError("no answer in 5 s"))

    def succeed(self) -> None:
        self.handshakes[-1].set_result(({(0, 0): "agent-d2"}, 0.0))

    def step(self) -> Any:
        """Have the engine take a step, and then the writer thread its turn."""
        return take_step(self.worker)


MakePrefill = Callable[..., Prefill]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> MakePrefill:
    def made(**options: Any) -> Prefill:
        return Prefill(push(ScriptedAgent(), **options), monkeypatch)

    return made


def test_stock_drops_a_push_whose_handshake_fails(make: MakePrefill) -> None:
    prefill = make(ours=False)
    rig.sending(prefill.worker, "r")
    prefill.match("r")
    prefill.fail()
    for _ in range(3):
        prefill.step()
    assert (len(prefill.handshakes), prefill.pushed) == (1, [])
    assert "r" in prefill.worker._reqs_to_send  # though the blocks are held


def test_a_push_is_made_when_a_later_handshake_succeeds(backend: str, make: MakePrefill) -> None:
    prefill = make(ours=True, backend=backend)
    clock = rig.use_clock(prefill.worker)
    rig.sending(prefill.worker, "r")
    prefill.match("r")
    prefill.fail()
    for wait_s in (1.0, 2.0, 4.0):
        known = len(prefill.handshakes)
        clock.advance(wait_s - 0.5)
        prefill.step()
        assert len(prefill.handshakes) == known  # not at every step
        clock.advance(0.5)
        prefill.step()
        assert len(prefill.handshakes) == known + 1
        if wait_s < 4.0:
            prefill.fail()
    assert prefill.pushed == []
    prefill.succeed()
    prefill.step()
    assert prefill.pushed == [("r", BLOCKS)]
    prefill.step()
    assert len(prefill.pushed) == 1
    assert prefill.worker._kvfast.retries._failures == {}  # the id may come again


def test_pushes_that_waited_for_one_handshake_are_all_made(backend: str, make: MakePrefill) -> None:
    prefill = make(ours=True, backend=backend)
    clock = rig.use_clock(prefill.worker)
    for req_id in ("r", "s"):
        rig.sending(prefill.worker, req_id)
        prefill.match(req_id)
    prefill.fail()
    clock.advance(1.0)
    prefill.step()
    assert len(prefill.handshakes) == 2  # one for both, each time
    prefill.succeed()
    prefill.step()
    assert sorted(prefill.pushed) == [("r", BLOCKS), ("s", BLOCKS)]


def test_a_push_that_can_not_be_posted_is_forgotten(
    backend: str, make: MakePrefill, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill = make(ours=True, backend=backend)
    clock = rig.use_clock(prefill.worker)
    rig.sending(prefill.worker, "r")
    prefill.match("r")
    prefill.fail()
    clock.advance(1.0)
    prefill.step()
    prefill.succeed()

    def refuse(worker: Any, req_id: str, meta: Any) -> None:
        raise NotImplementedError("other layouts")

    monkeypatch.setattr(rig.STOCK["push"], "_xfer_blocks_for_req", refuse)
    with pytest.raises(NotImplementedError):
        prefill.step()
    assert prefill.worker._kvfast.retries._failures == {}
    assert prefill.worker._kvfast.retries.take_due() == []


def test_nothing_is_pushed_once_the_lease_has_run_out(backend: str, make: MakePrefill) -> None:
    prefill = make(ours=True, backend=backend)
    clock = rig.use_clock(prefill.worker)
    rig.sending(prefill.worker, "r")
    prefill.match("r")
    prefill.fail()
    rig.sending(prefill.worker, "r", lease_s=-1.0)
    assert prefill.step().finished_sending == {"r"}  # its blocks may be another's
    clock.advance(1.0)
    prefill.step()
    assert (len(prefill.handshakes), prefill.pushed) == (1, [])
    assert prefill.worker._kvfast.retries._failures == {}


def test_a_handshake_that_fails_before_anybody_waits_for_it(backend: str, make: MakePrefill) -> None:
    prefill = make(ours=True, backend=backend)
    clock = rig.use_clock(prefill.worker)

    def refused(*_: Any, **__: Any) -> Future[Any]:
        handshake: Future[Any] = Future()
        handshake.set_exception(TimeoutError("no answer in 5 s"))
        return handshake

    prefill.worker._ensure_handshake = refused
    prefill.match("r")
    del prefill.worker._ensure_handshake
    clock.advance(1.0)
    prefill.step()
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
    assert worker._kvfast.retries.take_due() == []


def test_the_wait_grows_up_to_half_a_minute_and_begins_anew() -> None:
    clock = FakeClock()
    retries = PushRetries(clock)
    assert [retries.failed("r", n) for n in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    clock.advance(8.0)
    assert retries.take_due() == [0, 1, 2, 3]
    assert retries.take_due() == []
    clock.advance(100.0)
    assert retries.take_due() == [4, 5, 6]
    retries.forget("r")
    assert retries.failed("r", 7) == 1


def test_a_decode_that_is_silent_for_a_handshake_is_asked_again() -> None:
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
        worker._do_start_push_kv("r", BLOCKS, registration_at("127.0.0.1", port))
        questions = 0
        deadline = time.monotonic() + 60
        while questions < 2 and time.monotonic() < deadline:
            take_step(worker)
            questions += bool(listener.poll(10) and listener.recv_multipart())
    assert questions == 2
