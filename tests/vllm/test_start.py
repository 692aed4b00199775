"""What is made at a start: one worker, one agent, with a lock."""

from __future__ import annotations

import logging
from typing import Any
from unittest.mock import MagicMock

import pytest

pytest.importorskip("vllm")

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker import NixlBaseConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlBaseConnector

from kvfast.testing import ScriptedAgent
from kvfast.vllm import connector
from kvfast.vllm.agent import LockedAgentWorker
from tests.vllm import rig

pytest.importorskip("nixl._api")

from nixl._api import nixl_agent_config

CONNECTORS = {"pull": "KvfastNixlPullConnector", "push": "KvfastNixlPushConnector"}


def config_with(**extra: Any) -> Any:
    config = MagicMock()
    config.kv_transfer_config.kv_connector_extra_config = extra
    config.kv_transfer_config.kv_role = "kv_consumer"
    config.kv_transfer_config.engine_id = "engine"
    config.kv_transfer_config.get_from_extra_config = extra.get
    config.parallel_config.prefill_context_parallel_size = 1
    config.parallel_config.decode_context_parallel_size = 1
    return config


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_a_connector_makes_one_worker(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    for kind, classes in (("stock", rig.STOCK), ("ours", rig.OURS)):
        monkeypatch.setattr(classes[mode], "__init__", lambda *_, kind=kind: made.append(kind))
    cls = getattr(connector, CONNECTORS[mode])
    worker = cls(config_with(kvfast_scan="all"), KVConnectorRole.WORKER, MagicMock())
    assert made == ["ours"]
    assert type(worker.connector_worker) is rig.OURS[mode]
    assert worker.connector_scheduler is None
    assert isinstance(worker, NixlBaseConnector)


@pytest.mark.parametrize("mode", ["pull", "push"])
@pytest.mark.parametrize("role", list(KVConnectorRole))
def test_a_wrong_option_stops_the_start(mode: str, role: Any) -> None:
    with pytest.raises(ValueError, match="kvfast_sacn"):
        getattr(connector, CONNECTORS[mode])(config_with(kvfast_sacn="all"), role, MagicMock())


def stock_constructor(self: Any, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:
    self.made = nixl_agent_config(capture_telemetry=True)
    self.nixl_wrapper = ScriptedAgent()


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_the_agent_is_made_with_a_lock(
    mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(NixlBaseConnectorWorker, "__init__", stock_constructor)
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    before = nixl_agent_config
    with caplog.at_level(logging.INFO, "vllm.kvfast"):
        worker: Any = rig.OURS[mode](config_with(), "engine", None)
    assert worker.made.sync_mode.name == "NIXL_THREAD_SYNC_RW"
    assert worker.made.capture_telemetry
    assert nixl_agent_config is before
    assert "sync_mode=RW" in caplog.text
    assert "scan=watch" in caplog.text


def test_without_a_lock_python_polls(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(NixlBaseConnectorWorker, "__init__", stock_constructor)
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    monkeypatch.setitem(globals(), "nixl_agent_config", lambda capture_telemetry: None)
    with caplog.at_level(logging.INFO, "vllm.kvfast"):
        worker = rig.OURS["pull"](config_with(kvfast_backend="cython"), "engine", None)
    assert worker._kvfast.ops.backend_name == "python"
    assert "backend=python" in caplog.text
    assert "can't be given a lock" in caplog.text


def test_the_stock_constructor_is_run_between() -> None:
    for mode in ("pull", "push"):
        order = rig.OURS[mode].__mro__
        between = (rig.STOCK[mode], LockedAgentWorker, NixlBaseConnectorWorker)
        assert sorted(between, key=order.index) == list(between)
