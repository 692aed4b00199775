"""Polling beside a busy Python thread. Information: the floors of this are still to be set."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.contention import beside_a_busy_thread
from bench.real import HANDLES
from bench.report import Report

SECONDS = 0.7


@pytest.mark.parametrize("subject", ["per-handle loop", "cython all", "cython watch"])
def test_beside_a_busy_thread(sweeps: dict[str, Callable[[], object]], report: Report, subject: str) -> None:
    rates = beside_a_busy_thread(sweeps[subject], SECONDS)
    report.note(
        f"beside a busy thread, {HANDLES} real handles, {subject}",
        f"{rates.sweeps:,.1f} sweeps/s, the other thread {rates.work:,.0f} units/s",
    )
    assert rates.work > 0, "the other thread did nothing: this measured no contention"
