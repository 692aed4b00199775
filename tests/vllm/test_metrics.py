"""vLLM's numbers keep their meaning; kvfast's travel beside them."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

pytest.importorskip("vllm")

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kvfast.testing import ScriptedAgent
from kvfast.vllm.connector import KvfastNixlPullConnector
from kvfast.vllm.metrics import KvfastStats
from tests.vllm import rig


def stats_of(worker: Any) -> Any:
    worker._kvfast.counters._next = 0.0
    return worker.get_kv_connector_stats()


def test_a_step_without_events_sends_nothing() -> None:
    worker = rig.make(rig.OURS["pull"], ScriptedAgent())
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


def test_plain_stats_can_be_joined() -> None:
    plain = rig.NixlKVConnectorStats()
    plain.record_failed_transfer()
    assert KvfastStats().aggregate(plain).data["num_failed_transfers"] == [1]
