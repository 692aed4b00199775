"""The names in docs/metrics.md, in the Grafana dashboard and in the exporter are the same."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvfast import histogram, metric_names
from kvfast.stats import PrometheusExporter, Stats

ROOT = Path(__file__).parent.parent.parent
METRICS_MD = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
DASHBOARD: dict[str, Any] = json.loads((ROOT / "docs" / "grafana-dashboard.json").read_text(encoding="utf-8"))
HISTOGRAM_SERIES = re.compile(r"(_seconds)_(bucket|sum|count)$")


def exported_names() -> set[str]:
    """Return the names of the families that a scrape shows."""
    exporter = PrometheusExporter()
    stats = Stats()
    stats.set_info(backend="python", ops="python", scan="all")
    exporter.add(stats, role="receiver")
    return set(re.findall(r"^# TYPE (\S+)", exporter.text(), re.MULTILINE))


def names_in(text: str) -> set[str]:
    return {HISTOGRAM_SERIES.sub(r"\1", name) for name in re.findall(r"\bkvfast_\w+", text)}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def test_the_table_says_what_the_code_says() -> None:
    rows = re.findall(r"^\| `(kvfast_\w+)` \| (\w+) \| `?(\w*)`? ?\| (.+) \|$", METRICS_MD, re.MULTILINE)
    expected = [
        (metric_names.prometheus_name(metric), metric.kind, metric.name, metric.help)
        for metric in metric_names.METRICS.values()
    ]
    assert rows == [*expected, (metric_names.INFO_NAME, "gauge", "", metric_names.INFO_HELP)]


def test_the_table_says_what_a_scrape_shows() -> None:
    assert set(re.findall(r"^\| `(kvfast_\w+)` \|", METRICS_MD, re.MULTILINE)) >= exported_names()
    assert names_in(METRICS_MD) == exported_names()


def test_the_dashboard_shows_every_exported_name_and_no_other() -> None:
    assert names_in("\n".join(expressions())) == exported_names()
    assert names_in(json.dumps(DASHBOARD)) == exported_names()


def test_every_counter_and_gauge_is_counted_somewhere() -> None:
    sources = [path for path in (ROOT / "kvfast").rglob("*.py") if path.name != "metric_names.py"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    named = {*metric_names.COUNTERS, *metric_names.GAUGES}
    assert {name for name in named if f'"{name}"' not in text} == set()


def test_the_buckets_are_documented() -> None:
    documented = dict(re.findall(r"^\| `(\w+_seconds)` \| ([\d.e, -]+) \|$", METRICS_MD, re.MULTILINE))
    assert {name: tuple(map(float, text.split(", "))) for name, text in documented.items()} == {
        "transfer_seconds": histogram.TRANSFER_SECONDS,
        "post_seconds": histogram.POST_SECONDS,
        "sweep_seconds": histogram.SWEEP_SECONDS,
    }


def test_histograms_are_shown_by_their_series_and_counters_as_rates() -> None:
    for expression in expressions():
        for name in re.findall(r"\bkvfast_\w+", expression):
            assert bool(HISTOGRAM_SERIES.search(name)) == name.startswith(
                ("kvfast_transfer_", "kvfast_post_", "kvfast_sweep_")
            )
            summed = name.endswith(("_total", "_bucket", "_sum", "_count"))
            assert bool(re.search(rf"\b(rate|increase)\({name}\{{", expression)) == summed, expression
        assert expression.count("(") == expression.count(")")


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_a_panel_can_be_read(panel: dict[str, Any]) -> None:
    assert re.fullmatch(r"[A-Z][a-z ]+", panel["title"])
    assert panel["description"].endswith(".")
    if panel["type"] == "timeseries":
        unit = panel["fieldConfig"]["defaults"]["unit"]
        assert unit in {"short", "ops", "reqps", "Bps", "s"}
        timed = any("_seconds" in target["expr"] for target in panel["targets"])
        assert (unit == "s") == timed
        assert (unit == "Bps") == any("_bytes_" in target["expr"] for target in panel["targets"])
        assert all(target["legendFormat"].startswith("{{role}} ") for target in panel["targets"])
    references = [target["refId"] for target in panel["targets"]]
    assert len(set(references)) == len(references) > 0


def test_the_dashboard_can_be_imported_anywhere() -> None:
    assert DASHBOARD["id"] is None
    assert DASHBOARD["title"]
    assert DASHBOARD["schemaVersion"] >= 36
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    sources = [
        holder["datasource"]
        for holder in (*panels(), *(target for panel in panels() for target in panel["targets"]))
    ]
    sources += [variable["datasource"] for name, variable in variables.items() if name != "datasource"]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
    used = set(re.findall(r"\$(?!__)\{?(\w+)", json.dumps(DASHBOARD)))
    assert used == set(variables)


def test_panels_have_their_own_id_and_place() -> None:
    every = DASHBOARD["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    places = [panel["gridPos"] for panel in every]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for a, b in itertools.combinations(places, 2):
        apart = (
            a["x"] + a["w"] <= b["x"]
            or b["x"] + b["w"] <= a["x"]
            or a["y"] + a["h"] <= b["y"]
            or b["y"] + b["h"] <= a["y"]
        )
        assert apart, (a, b)
