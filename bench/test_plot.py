"""The picture of a run, drawn by the real matplotlib."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvfast.bench.plot import check_plot, plot
from kvfast.bench.result import BenchResult
from kvfast.bench.subjects import ALL, LIMIT, LIMIT_WATCH, LOOP

TIMES = {LOOP: 4e-4, ALL: 8e-5, LIMIT: 7e-5, LIMIT_WATCH: 2e-5}


@pytest.mark.parametrize("places", [("simulated",), ("simulated", "real")])
@pytest.mark.parametrize("name", ["plot.svg", "plot.png"])
def test_plot(tmp_path: Path, name: str, places: tuple[str, ...]) -> None:
    path = tmp_path / name
    check_plot(path)
    sweeps = {place: {16: TIMES, 256: TIMES} for place in places}
    plot(BenchResult("2026-11-29", "a machine", sweeps, {place: {256: TIMES} for place in places}), path)
    head = path.read_bytes()[:400]
    assert head.startswith(b"\x89PNG") if name.endswith("png") else b"<svg" in path.read_bytes()
