"""vLLM's numbers keep their meaning; kvfast's travel beside them."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

pytest.importorskip("vllm")

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kvfast.metric_names import COUNTERS
from kvfast.testing import ScriptedAgent, nixlRemoteDisconnectError
from kvfast.vllm.connector import KvfastNixlPullConnector
from kvfast.vllm.metrics import COUNTED, KvfastStats
from tests.vllm import rig


def stats_of(worker: Any) -> Any:
    worker._kvfast.counters._next = 0.0
    return worker.get_kv_connector_stats()


def test_a_step_without_events_sends_nothing() -> None:
    worker = rig.make(rig.OURS["pull"], ScriptedAgent())
    assert worker.get_kv_connector_stats() is None  # as vLLM's own, after a start
    assert stats_of(worker) is not None  # how it runs, once
    assert stats_of(worker) is None


def test_numbers_of_a_failure_and_a_success() -> None:
    agent = ScriptedAgent()
    worker = rig.make(rig.OURS["pull"], agent, scan="all", backend="python")
    worker._log_failure = lambda **_: None
    for state in ("DONE", "BACKEND"):
        handle = agent.prepare()
        agent.transfer(handle)
        agent.set_state(handle, state)
        rig.receive(worker, state, handle)
    worker.get_transfer_results()
    sent = json.loads(json.dumps(stats_of(worker).to_dict()))
    joined = KvfastStats().aggregate(KvfastNixlPullConnector.build_kv_connector_stats(data=sent))
    assert joined.data["num_failed_transfers"] == [1]
    assert joined.data["bytes_transferred"] == [1]
    counted = {"transfers": 1, "bytes": 1, "descriptors": 1, "failed_transfers": 1}
    counted |= {"finished_requests": 1, "failed_requests": 1}
    assert dict(joined.data["kvfast_counts"]) == counted
    assert joined.reduce()["Num successful transfers"] == 1

    registry = CollectorRegistry()
    types = {kind: functools.partial(kind, registry=registry) for kind in (Counter, Gauge, Histogram)}
    config = type("Config", (), {"kv_transfer_config": None})()
    metrics = KvfastNixlPullConnector.build_prom_metrics(config, types, ["engine"], {0: ["0"]})
    metrics.observe(joined.data, 0)
    assert registry.get_sample_value("kvfast_transfers_total", {"engine": "0"}) == 1
    assert registry.get_sample_value("vllm:nixl_num_failed_transfers_total", {"engine": "0"}) == 1
    (info,) = [family for family in registry.collect() if family.name == "kvfast_info"]
    assert info.samples[0].labels | {"version": ""} == {
        "engine": "0",
        "backend": "python",
        "ops": "python",
        "scan": "all",
        "version": "",
    }


def test_what_ends_within_a_second_is_sent_at_once() -> None:
    agent = ScriptedAgent()
    worker = rig.make(rig.OURS["pull"], agent)
    worker._log_failure = lambda **_: None
    for req_id in ("r", "s"):
        rig.receive(worker, req_id, in_state(agent, "BACKEND"))
        worker.get_transfer_results()
        sent = worker.get_kv_connector_stats()  # and then the engine may be idle, and ask no more
        assert dict(sent.data["kvfast_counts"]) == {"failed_transfers": 1, "failed_requests": 1}


def test_a_death_within_a_second_is_sent_at_once() -> None:
    """No transfer of decode's own fails by it in push mode: vLLM has nothing to send."""
    agent = ScriptedAgent()
    worker = rig.make(rig.OURS["push"], agent)
    agent.refuse_notifs(rig.AGENT, error=nixlRemoteDisconnectError("gone"))
    rig.receive(worker, "r")
    worker._send_heartbeats(rig.heartbeat("r"))
    worker.get_transfer_results()
    assert worker.get_transfer_results().failed_recving == {"r"}
    sent = worker.get_kv_connector_stats()
    assert dict(sent.data["kvfast_counts"]) == {"dead_peers": 1, "failed_requests": 1}
    assert worker.get_kv_connector_stats() is None


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_how_requests_end_is_counted(mode: str) -> None:
    agent = ScriptedAgent()
    worker = rig.make(rig.OURS[mode], agent)
    worker._log_failure = lambda **_: None
    rig.sending(worker, "late", lease_s=-1.0)
    if mode == "pull":
        rig.sending(worker, "read")
        agent.deliver_notif(rig.AGENT, b"read:1")
        rig.receive(worker, "dead", in_state(agent, "DISCONNECT"))
    else:
        rig.sending(worker, "written", in_state(agent, "DONE"))
        agent.refuse_notifs(rig.AGENT, error=nixlRemoteDisconnectError("gone"))
        rig.receive(worker, "dead")
        worker._send_heartbeats(rig.heartbeat("dead"))
    for _ in range(2):
        worker.get_transfer_results()
    found = worker._kvfast.stats.snapshot()
    names = ("finished_requests", "failed_requests", "expired_leases", "dead_peers")
    assert [found[name] for name in names] == [1, 1, 1, int(mode == "push")]
    assert len(worker.xfer_stats.data["num_kv_expired_reqs"]) == 1
    assert set(names) <= set(COUNTED) <= set(COUNTERS)


def test_a_peer_that_a_transfer_found_dead_is_counted_once() -> None:
    agent = ScriptedAgent()
    worker = rig.make(rig.OURS["push"], agent)
    handles = [in_state(agent, "DISCONNECT") for _ in range(2)]
    for handle in handles:
        worker._sending_transfers.note_peer(handle, rig.AGENT)
    rig.sending(worker, "r", *handles)
    for _ in range(3):
        worker.get_transfer_results()
    assert worker._kvfast.stats.snapshot()["dead_peers"] == 1
    assert worker._kvfast.dead_agents == set()  # nothing of a removed engine stays
    assert agent.removed == [rig.AGENT]


def in_state(agent: ScriptedAgent, state: str) -> Any:
    handle = agent.prepare()
    agent.transfer(handle)
    agent.set_state(handle, state)
    return handle


def test_plain_stats_can_be_joined() -> None:
    plain = rig.NixlKVConnectorStats()
    plain.record_failed_transfer()
    assert KvfastStats().aggregate(plain).data["num_failed_transfers"] == [1]
