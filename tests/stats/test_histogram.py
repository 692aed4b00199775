"""Histograms: which bucket a value is in, and what the sum is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfast import histogram
from kvfast.histogram import Histogram

ALL_BOUNDS = {
    "transfer": histogram.TRANSFER_SECONDS,
    "post": histogram.POST_SECONDS,
    "sweep": histogram.SWEEP_SECONDS,
}


@pytest.mark.parametrize(
    ("values", "buckets"),
    [
        ([], {"1.0": 0, "2.0": 0, "+Inf": 0}),
        ([0.0, 0.5], {"1.0": 2, "2.0": 2, "+Inf": 2}),
        ([1.0], {"1.0": 1, "2.0": 1, "+Inf": 1}),  # a bound belongs to its bucket
        ([np.nextafter(1.0, 2.0)], {"1.0": 0, "2.0": 1, "+Inf": 1}),
        ([2.0, 2.5, math.inf], {"1.0": 0, "2.0": 1, "+Inf": 3}),
    ],
)
def test_buckets_hold_the_values_up_to_their_bound(values: list[float], buckets: dict[str, int]) -> None:
    held = Histogram([1.0, 2.0])
    held.add(values)
    assert held.snapshot() == {"count": len(values), "sum": sum(values), "buckets": buckets}


def test_values_add_up_over_calls() -> None:
    held = Histogram([1.0, 2.0])
    held.add([0.5, 5.0])
    held.add(np.array([1.5]))
    assert held.snapshot() == {"count": 3, "sum": 7.0, "buckets": {"1.0": 1, "2.0": 2, "+Inf": 3}}


def test_negative_and_nan_count_as_zero() -> None:
    held = Histogram([1.0])
    held.add([-5.0, math.nan, 0.25])
    assert held.snapshot() == {"count": 3, "sum": 0.25, "buckets": {"1.0": 3, "+Inf": 3}}


@settings(deadline=None)
@given(st.lists(st.floats(0, 100), max_size=50))
def test_like_a_plain_count(values: list[float]) -> None:
    bounds = histogram.TRANSFER_SECONDS
    held = Histogram(bounds)
    held.add(values)
    snapshot = held.snapshot()
    for bound in bounds:
        assert snapshot["buckets"][repr(bound)] == sum(value <= bound for value in values)
    assert snapshot["buckets"]["+Inf"] == snapshot["count"] == len(values)
    assert snapshot["sum"] == pytest.approx(math.fsum(values))


@pytest.mark.parametrize("bounds", [(), (1.0, 1.0), (2.0, 1.0), (1.0, math.nan), ((1.0, 2.0),)])
def test_bounds_that_do_not_rise_are_refused(bounds: Sequence[float]) -> None:
    with pytest.raises(ValueError, match="one rising row"):
        Histogram(bounds)


@pytest.mark.parametrize("bounds", ALL_BOUNDS.values(), ids=ALL_BOUNDS)
def test_default_bounds_step_as_documented(bounds: tuple[float, ...]) -> None:
    steps = [after / before for before, after in itertools.pairwise(bounds)]
    assert max(steps) <= 2.5 + 1e-9
    assert {f"{bound:e}".partition("e")[0].rstrip("0").rstrip(".") for bound in bounds} <= {"1", "2.5", "5"}
