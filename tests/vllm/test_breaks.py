"""A connection that breaks: what was agreed over it, and what is seen of its end."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import PUSH_REG_NOTIF_PREFIX

from kvfast.testing import ScriptedAgent, nixlRemoteDisconnectError
from tests.vllm import rig
from tests.vllm.test_better_than_stock import posted, push


@pytest.fixture
def agent() -> ScriptedAgent:
    return ScriptedAgent()


@pytest.fixture
def worker(agent: ScriptedAgent) -> Any:
    return push(agent, ours=True)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Requests that were written, each with the agent it went to."""
    found: list[tuple[str, str]] = []

    def note(self: Any, req_id: str, meta: Any) -> None:
        found.append((req_id, self._remote_agents[meta.remote.engine_id][(0, 0)]))

    monkeypatch.setattr(rig.STOCK["push"], "_xfer_blocks_for_req", note)
    return found


def register(worker: Any, req_id: str) -> None:
    """Let decode say where to write."""
    worker._handle_push_reg_notif(
        PUSH_REG_NOTIF_PREFIX + rig.packed(rig.registration() | {"request_id": req_id})
    )


def prefilled(worker: Any, req_id: str) -> None:
    """Let prefill have computed a request."""
    rig.sending(worker, req_id)
    worker._do_start_push_kv(req_id, ([1],), worker._pop_matching_registration(req_id))


def writer_turn(worker: Any) -> None:
    while not worker._deferred_push_inbox.empty():
        worker._do_start_push_kv(*worker._deferred_push_inbox.get_nowait())


def break_off(worker: Any, agent: ScriptedAgent) -> None:
    """Let a WRITE meet the end of the connection with decode, and decode answer again, as another agent."""
    handshakes = rig.Handshakes(worker)
    handle = posted(agent, "DISCONNECT")
    worker._sending_transfers.note_peer(handle, rig.AGENT)
    rig.sending(worker, "cut", handle)
    worker.get_transfer_results()
    worker.get_transfer_results()
    assert rig.ENGINE not in worker._remote_agents
    worker._remote_agents[rig.ENGINE] = {(0, 0): "agent-again"}
    assert not handshakes.futures


def test_what_a_decode_registered_before_it_was_cut_off_is_not_written(
    agent: ScriptedAgent, worker: Any, written: list[tuple[str, str]]
) -> None:
    # What answers now may be a new process, or one that has failed the request: the blocks are another's.
    register(worker, "r")
    break_off(worker, agent)
    prefilled(worker, "r")
    worker.get_transfer_results()
    writer_turn(worker)
    assert written == []


def test_it_is_written_when_decode_asks_for_it_again(
    agent: ScriptedAgent, worker: Any, written: list[tuple[str, str]]
) -> None:
    register(worker, "r")
    break_off(worker, agent)
    prefilled(worker, "r")
    worker._kvfast.retries._clock = lambda: float("inf")
    worker._handle_heartbeat("r")
    writer_turn(worker)
    assert written == [("r", "agent-again")]


def test_what_is_registered_after_the_break_is_written_at_once(
    agent: ScriptedAgent, worker: Any, written: list[tuple[str, str]]
) -> None:
    break_off(worker, agent)
    register(worker, "r")
    prefilled(worker, "r")
    assert written == [("r", "agent-again")]


def test_a_request_that_is_being_registered_when_its_prefill_dies_fails(
    agent: ScriptedAgent, worker: Any
) -> None:
    # The registration is sent, as far as NIXL tells, in the moment in which a heartbeat meets the end.
    where = {"remote_engine_id": rig.ENGINE, "remote_host": "host", "remote_port": 1, "remote_tp_size": 1}
    rig.receive(worker, "r")
    send = agent.send_notif

    def meet(*args: Any, **kwargs: Any) -> None:
        worker._kvfast_found_dead(rig.AGENT, None)
        assert worker.get_transfer_results().failed_recving == set()
        send(*args, **kwargs)

    agent.send_notif = meet  # type: ignore[method-assign]
    worker._send_registration_to_p("r", rig.registration() | where)
    agent.send_notif = send  # type: ignore[method-assign]
    failed: set[str] = set()
    for _ in range(3):
        failed |= worker.get_transfer_results().failed_recving
    assert failed == {"r"}


def test_a_dead_agent_is_counted_once_while_its_removal_waits(agent: ScriptedAgent, worker: Any) -> None:
    handle = posted(agent, "PROC")
    worker._sending_transfers.note_peer(handle, rig.AGENT)
    rig.sending(worker, "keeps", handle, lease_s=1e6)
    agent.refuse_notifs(rig.AGENT, error=nixlRemoteDisconnectError("gone"))
    for _ in range(3):
        worker._send_heartbeats(rig.heartbeat("r"))
        worker.get_transfer_results()
    assert rig.ENGINE in worker._kvfast.removing
    assert worker._kvfast.stats.snapshot()["dead_peers"] == 1
