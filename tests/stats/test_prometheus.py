"""Export to Prometheus: what a scrape sees, and what it costs when nobody scrapes."""

from __future__ import annotations

import http.client
import math
import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

import kvfast
from kvfast import metric_names
from kvfast.stats import PrometheusExporter, Stats
from kvfast_ext.contract import Transfers

Sample = tuple[str, frozenset[tuple[str, str]]]


def samples(text: str) -> dict[Sample, float]:
    """Parse Prometheus's text; a sample that is there twice would make a scrape fail."""
    found: dict[Sample, float] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def value_of(exporter: PrometheusExporter, name: str, **labels: str) -> float | None:
    return samples(exporter.text()).get((name, frozenset(labels.items())))


@pytest.fixture
def stats() -> Stats:
    stats = Stats()
    stats.count("bad_notifs", 3)
    stats.observe_sweep(0.5)
    row = np.array([1_000, 3_000], np.int64)
    stats.observe_transfers(Transfers(row, row, row, row))
    stats.set_gauges(lambda: {"outstanding_handles": 4})
    return stats


@pytest.fixture
def exporter() -> PrometheusExporter:
    return PrometheusExporter()


def test_a_scrape_shows_what_was_counted(stats: Stats, exporter: PrometheusExporter) -> None:
    exporter.add(stats, role="receiver")
    found = samples(exporter.text())
    role = ("role", "receiver")
    expected = {
        ("kvfast_bad_notifs_total", role): 3,
        ("kvfast_transfers_total", role): 2,
        ("kvfast_bytes_total", role): 4_000,
        ("kvfast_failed_requests_total", role): 0,
        ("kvfast_outstanding_handles", role): 4,
        ("kvfast_outstanding_requests", role): 0,
        ("kvfast_transfer_seconds_count", role): 2,
        ("kvfast_transfer_seconds_sum", role): 0.004,
        ("kvfast_transfer_seconds_bucket", role, ("le", "0.0005")): 0,
        ("kvfast_transfer_seconds_bucket", role, ("le", "0.001")): 1,
        ("kvfast_transfer_seconds_bucket", role, ("le", "0.005")): 2,
        ("kvfast_transfer_seconds_bucket", role, ("le", "+Inf")): 2,
        ("kvfast_sweep_seconds_bucket", role, ("le", "0.1")): 0,
        ("kvfast_sweep_seconds_bucket", role, ("le", "+Inf")): 1,
        ("kvfast_sweep_seconds_sum", role): 0.5,
    }
    for (name, *labels), value in expected.items():
        assert found[str(name), frozenset(labels)] == value, name  # type: ignore[arg-type]


def test_a_scrape_shows_every_metric_and_nothing_else(stats: Stats, exporter: PrometheusExporter) -> None:
    exporter.add(stats, role="receiver")
    stats.set_info(backend="python", ops="python", scan="all")
    names = {name for name, _ in samples(exporter.text())}
    families = {re.sub(r"(?<=_seconds)_(bucket|count|sum)$", "", name) for name in names}
    declared = {metric_names.prometheus_name(metric) for metric in metric_names.METRICS.values()}
    assert families == declared | {metric_names.INFO_NAME}


def test_names_keep_prometheus_conventions() -> None:
    for metric in metric_names.METRICS.values():
        name = metric_names.prometheus_name(metric)
        assert re.fullmatch(r"kvfast_[a-z]+(_[a-z]+)*", name)
        assert name.endswith("_total") == (metric.kind == "counter")
        assert (metric.kind == "histogram") <= name.endswith("_seconds")
        assert not re.search(r"(_us|_ms|_s|_count|_sum|_bucket)$", name)
        assert metric.help.endswith(".")


def test_numbers_are_those_of_the_moment(stats: Stats, exporter: PrometheusExporter) -> None:
    exporter.add(stats, role="r")
    assert value_of(exporter, "kvfast_bad_notifs_total", role="r") == 3
    stats.count("bad_notifs")
    assert value_of(exporter, "kvfast_bad_notifs_total", role="r") == 4


def test_several_are_told_apart_by_their_labels(stats: Stats, exporter: PrometheusExporter) -> None:
    exporter.add(stats, role="receiver", labels={"engine": "0"})
    exporter.add(Stats(), role="sender")
    odd = 'a"b\\c\nd'
    exporter.add(Stats(), role="sender", labels={"rank": odd})
    values = {
        labels: value
        for (name, labels), value in samples(exporter.text()).items()
        if name == "kvfast_bad_notifs_total"
    }
    assert {frozenset((k, v) for k, v in labels if v): value for labels, value in values.items()} == {
        frozenset({("role", "receiver"), ("engine", "0")}): 3,
        frozenset({("role", "sender")}): 0,
        frozenset({("role", "sender"), ("rank", odd)}): 0,
    }


def test_equal_labels_are_refused(stats: Stats, exporter: PrometheusExporter) -> None:
    exporter.add(stats, role="receiver", labels={"engine": ""})
    for labels in (None, {}, {"engine": ""}, {"rank": ""}):
        with pytest.raises(ValueError, match="'receiver'"):
            exporter.add(Stats(), role="receiver", labels=labels)
    assert value_of(exporter, "kvfast_bad_notifs_total", role="receiver", engine="") == 3


def test_what_is_removed_is_not_shown(stats: Stats, exporter: PrometheusExporter) -> None:
    exporter.add(stats, role="receiver")
    exporter.remove(stats)
    exporter.remove(stats)
    assert samples(exporter.text()) == {}
    exporter.add(stats, role="receiver")
    assert value_of(exporter, "kvfast_bad_notifs_total", role="receiver") == 3


@pytest.mark.parametrize(
    ("role", "labels", "error", "named"),
    [
        ("", {}, ValueError, "''"),
        (None, {}, TypeError, "role .* None"),
        ("r", {"engine": 1}, TypeError, "engine .* 1"),
        ("r", {1: "x"}, TypeError, "1"),
        ("r", {"le": "x"}, ValueError, "'le'"),
        ("r", {"role": "x"}, ValueError, "'role'"),
        ("r", {"backend": "x"}, ValueError, "'backend'"),
        ("r", {"a-b": "x"}, ValueError, "'a-b'"),
        ("r", {"__a": "x"}, ValueError, "'__a'"),
        ("r", {"é": "x"}, ValueError, "'é'"),
        ("r", {"": "x"}, ValueError, "''"),
        ("r", {"a\n": "x"}, ValueError, r"'a\\n'"),
    ],
)
def test_bad_labels_are_named(
    exporter: PrometheusExporter, role: Any, labels: Any, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        exporter.add(Stats(), role=role, labels=labels)
    assert samples(exporter.text()) == {}


def test_only_stats_are_exported(exporter: PrometheusExporter) -> None:
    with pytest.raises(TypeError, match="not 'stats'"):
        exporter.add("stats", role="r")  # type: ignore[arg-type]
    assert samples(exporter.text()) == {}


def test_info_tells_how_each_runs(stats: Stats, exporter: PrometheusExporter) -> None:
    exporter.add(stats, role="both")
    assert [name for name, _ in samples(exporter.text()) if name == "kvfast_info"] == []
    for scan in ("watch", "all"):
        stats.set_info(backend="cython", ops="nixl", scan=scan)
        labels = {"backend": "cython", "ops": "nixl", "scan": scan, "version": kvfast.__version__}
        assert value_of(exporter, "kvfast_info", role="both", **labels) == 1


def test_a_gauge_that_fails_does_not_fail_the_scrape(stats: Stats, exporter: PrometheusExporter) -> None:
    def broken() -> dict[str, float]:
        raise RuntimeError("broken")

    stats.set_gauges(broken)
    exporter.add(stats, role="r")
    found = samples(exporter.text())
    assert math.isnan(found["kvfast_outstanding_handles", frozenset({("role", "r")})])
    assert found["kvfast_failed_gauges_total", frozenset({("role", "r")})] == 1
    assert found["kvfast_bad_notifs_total", frozenset({("role", "r")})] == 3


def test_nothing_is_asked_until_a_scrape(exporter: PrometheusExporter) -> None:
    asked = []

    def provider() -> dict[str, float]:
        asked.append(1)
        return {}

    stats = Stats()
    stats.set_gauges(provider)
    exporter.add(stats, role="r")
    prometheus_client.CollectorRegistry(auto_describe=True).register(exporter)
    for _ in range(1_000):
        stats.observe_sweep(1e-5)
    assert asked == []
    exporter.text()
    assert asked == [1]


def test_it_can_be_registered_beside_others(stats: Stats, exporter: PrometheusExporter) -> None:
    exporter.add(stats, role="r")
    registry = prometheus_client.CollectorRegistry()
    prometheus_client.Counter("other", "Another's.", registry=registry)
    registry.register(exporter)
    names = {name for name, _ in samples(prometheus_client.generate_latest(registry).decode())}
    assert names >= {"other_total", "kvfast_bad_notifs_total"}


def get(port: int, accept: str = "") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/metrics", headers={"Accept": accept})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_serve_answers_on_loopback_until_closed(stats: Stats, exporter: PrometheusExporter) -> None:
    exporter.add(stats, role="r")
    with exporter.serve(0) as server:
        assert server.address == ("127.0.0.1", server.port)
        status, text = get(server.port)
        assert status == 200
        assert text == exporter.text()
        status, text = get(server.port, "application/openmetrics-text; version=1.0.0")
        assert status == 200
        assert "kvfast_bad_notifs_total" in text
        assert text.endswith("# EOF\n")
        with pytest.raises(OSError, match="ddress already in use"):
            exporter.serve(server.port)
    with pytest.raises(ConnectionRefusedError):
        get(server.port)
    assert not server._thread.is_alive()


@pytest.fixture
def without_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in sys.modules if name.partition(".")[0] == "prometheus_client"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    yield
    monkeypatch.undo()


@pytest.mark.usefixtures("without_client")
def test_without_prometheus_client_the_error_says_what_to_install() -> None:
    assert Stats().snapshot()["transfers"] == 0
    with pytest.raises(kvfast.BackendUnavailableError, match=re.escape('pip install "kvfast[metrics]"')):
        PrometheusExporter()
