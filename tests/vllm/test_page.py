"""What docs/vllm.md says is so: its configurations, its options, its metrics, its log line."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm.config.kv_transfer import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

from kvfast.metric_names import COUNTERS, INFO_LABELS, prometheus_name
from kvfast.vllm import plugin
from kvfast.vllm.metrics import COUNTED
from kvfast.vllm.options import PREFIX, Options
from kvfast.vllm.versions import VERSIONS

PAGE = (Path(__file__).parents[2] / "docs" / "vllm.md").read_text()
CONFIGURATIONS = [json.loads(found) for found in re.findall(r"'(\{.*?\})'", PAGE, re.DOTALL)]


def test_the_page_has_configurations_for_both_sides() -> None:
    roles = [configuration["kv_role"] for configuration in CONFIGURATIONS]
    assert len(roles) == 4
    assert {"kv_producer", "kv_consumer"} == set(roles)


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
def test_a_configuration_gives_a_connector(configuration: dict[str, Any]) -> None:
    plugin.register()
    config = KVTransferConfig(**configuration)
    assert KVConnectorFactory.get_connector_class(config).__module__ == "kvfast.vllm.connector"
    Options.read(config.kv_connector_extra_config)


def test_the_names_are_all_there() -> None:
    table = PAGE[PAGE.index("| instead of |") : PAGE.index("## Options")]
    assert set(re.findall(r"`(Kvfast\w+)`", table)) == set(plugin.CONNECTORS)


def test_the_options_are_all_there_with_their_defaults() -> None:
    table = PAGE[PAGE.index("## Options") : PAGE.index("## See that")]
    rows = dict(re.findall(r"^\| `(kvfast_\w+)` \|[^|]*\| ([^|]*) \|", table, re.MULTILINE))
    defaults = {field.name: field.default for field in fields(Options)}
    shown = {
        PREFIX + name: "off"
        if value is None
        else f"`{value:g}`"
        if isinstance(value, float)
        else f"`{value}`"
        for name, value in defaults.items()
    }
    assert rows == shown


def test_the_metrics_are_all_there() -> None:
    table = PAGE[PAGE.index("| counter |") : PAGE.index("They come beside")]
    assert sorted(re.findall(r"`(kvfast_\w+_total)`", table)) == sorted(
        prometheus_name(COUNTERS[name]) for name in COUNTED
    )
    assert f"`kvfast_info{{{','.join(INFO_LABELS)}}}`" in PAGE


def test_the_versions_are_all_there() -> None:
    (line,) = re.findall(r"^Supported are vLLM (.*);", PAGE, re.MULTILINE)
    assert re.findall(r"\d+\.\d+", line) == [f"{major}.{minor}" for major, minor in VERSIONS]
