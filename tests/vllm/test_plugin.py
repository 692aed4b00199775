"""The entry point: the connectors are known by name, and vLLM starts whatever is wrong with them."""

from __future__ import annotations

import importlib.metadata
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import vllm.plugins
from vllm.config.kv_transfer import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

from kvfast.vllm import plugin
from kvfast.vllm.metrics import KvfastStats
from kvfast.vllm.versions import UnsupportedVllmError

FACTORY = "vllm.distributed.kv_transfer.kv_connector.factory"
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the connectors that vLLM knows, as they are without kvfast."""
    known = {k: v for k, v in KVConnectorFactory._registry.items() if k not in plugin.CONNECTORS}
    monkeypatch.setattr(KVConnectorFactory, "_registry", known)
    monkeypatch.setattr(vllm.plugins, "plugins_loaded", False)
    return known


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have an installed kvfast: the one that is, or what pyproject.toml would make of it."""
    try:
        importlib.metadata.distribution("kvfast")
    except importlib.metadata.PackageNotFoundError:
        tomllib = pytest.importorskip("tomllib")
        groups = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"]
        lines = [
            line
            for group, points in groups.items()
            for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
        ]
        folder = tmp_path / "kvfast-0.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: kvfast\nVersion: 0.0\n")
        (folder / "entry_points.txt").write_text("\n".join(lines))
        monkeypatch.syspath_prepend(str(tmp_path))


def choose(name: str) -> Any:
    """Return what vLLM takes for a configuration that gives nothing but a connector's name."""
    return KVConnectorFactory.get_connector_class(KVTransferConfig(kv_connector=name, kv_role="kv_both"))


@pytest.mark.usefixtures("installed")
def test_an_installed_kvfast_is_known_by_name_alone(
    registry: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "kvfast")
    with pytest.raises(ValueError, match="KvfastNixlConnector"):
        choose("KvfastNixlConnector")
    vllm.plugins.load_general_plugins()
    assert set(plugin.CONNECTORS) <= set(registry)
    for name in plugin.CONNECTORS:
        assert choose(name).__module__ == "kvfast.vllm.connector"
    assert choose("KvfastNixlConnector") is choose("KvfastNixlPullConnector")


@pytest.mark.usefixtures("installed")
def test_nothing_is_registered_where_plugins_are_off(
    registry: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "another")
    vllm.plugins.load_general_plugins()
    assert not set(plugin.CONNECTORS) & set(registry)


@pytest.mark.usefixtures("installed")
def test_a_vllm_without_these_modules_starts(
    registry: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "kvfast")
    monkeypatch.setitem(sys.modules, FACTORY, None)
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    vllm.plugins.load_general_plugins()
    assert not set(plugin.CONNECTORS) & set(registry)
    (record,) = [record for record in caplog.records if record.name == "vllm.kvfast"]
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None


@pytest.mark.usefixtures("installed")
def test_another_vllm_starts_and_is_told(
    registry: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise UnsupportedVllmError("kvfast supports vLLM 1.0; found 2.0")

    monkeypatch.setenv("VLLM_PLUGINS", "kvfast")
    monkeypatch.setattr(plugin, "check_vllm", refuse)
    monkeypatch.setattr("kvfast.vllm.versions.check_vllm", refuse)
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    with caplog.at_level(logging.INFO, "vllm.kvfast"):
        vllm.plugins.load_general_plugins()
    assert "found 2.0" in caplog.text
    with pytest.raises(UnsupportedVllmError, match=r"found 2\.0"):
        choose("KvfastNixlConnector")


def test_it_can_be_loaded_twice(registry: dict[str, Any]) -> None:
    plugin.register()
    first = dict(registry)
    plugin.register()
    assert registry == first
    assert set(plugin.CONNECTORS) <= set(registry)


@pytest.mark.parametrize("name", plugin.CONNECTORS)
def test_a_multi_connector_reads_what_its_child_counts_where_plugins_are_off(
    registry: dict[str, Any], name: str
) -> None:
    child = KVTransferConfig(kv_connector=name, kv_connector_module_path="kvfast.vllm", kv_role="kv_both")
    found = KVConnectorFactory.get_connector_class(child)
    counted = KvfastStats()
    counted.record_failed_transfer()
    read = MultiConnector.build_kv_connector_stats({found.__name__: counted.data})
    assert isinstance(read[found.__name__], KvfastStats)
    assert set(plugin.CONNECTORS) <= set(registry)


@pytest.mark.usefixtures("registry")
def test_another_vllm_is_told_where_plugins_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise UnsupportedVllmError("kvfast supports vLLM 1.0; found 2.0")

    monkeypatch.setattr("kvfast.vllm.versions.check_vllm", refuse)
    child = KVTransferConfig(
        kv_connector="KvfastNixlConnector", kv_connector_module_path="kvfast.vllm", kv_role="kv_both"
    )
    with pytest.raises(UnsupportedVllmError, match=r"found 2\.0"):
        KVConnectorFactory.get_connector_class(child)


def test_nothing_of_vllm_is_loaded_until_a_connector_is_asked_for() -> None:
    code = "import sys, kvfast.vllm; sys.exit('vllm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
