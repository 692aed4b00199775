"""Histograms with fixed buckets, fed with arrays.

The bucket bounds are 1, 2.5 and 5 in each decade: a quantile read from them is off by a factor of
2.5 at most. Where each range begins and ends:

``TRANSFER_SECONDS``
    100 us to 25 s. One 2 MiB block at 400 Gb/s takes 42 us, so the first bucket is "as fast as the
    wire"; the last bound is under the default quarantine of 30 s, so what is over it is about to be
    given up.
``POST_SECONDS``
    5 us to 1 s. A post takes time for each descriptor, in the caller's thread. Medians seen with
    NIXL 1.5.1 and UCX over TCP on one machine: 58 us for 1 descriptor, 1.8 ms for 1,000, 126 ms for
    10,000.
``SWEEP_SECONDS``
    1 us to 100 ms. Seen with simulated transfers: 2.5 us for nothing outstanding, 4 us (``cython``)
    or 1.2 ms (``python``) for 1,000 requests. An engine's step is 5 to 50 ms, so that a sweep in the
    last buckets holds the engine up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict

import numpy as np
import numpy.typing as npt

TRANSFER_SECONDS: Final = (
    1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0,
)  # fmt: skip
POST_SECONDS: Final = (
    5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0,
)  # fmt: skip
SWEEP_SECONDS: Final = (
    1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1,
)  # fmt: skip


class HistogramSnapshot(TypedDict):
    """What a histogram held at one moment.

    ``buckets`` has the number of values up to each upper bound, that bound included, so that they
    rise; the last is ``"+Inf"`` and equals ``count``.
    """

    count: int
    sum: float
    buckets: dict[str, int]


class Histogram:
    """Counts of values by bucket. Not thread-safe: its owner guards it.

    Parameters
    ----------
    bounds : sequence of float
        Upper bounds of the buckets, inclusive, rising.
    """

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = np.asarray(bounds, dtype=np.float64)
        if self._bounds.ndim != 1 or not len(self._bounds) or not bool(np.all(np.diff(self._bounds) > 0)):
            raise ValueError(f"bounds of a histogram must be one rising row of numbers, not {bounds!r}")
        self._counts = np.zeros(len(self._bounds) + 1, dtype=np.int64)
        self._total = 0.0

    def add(self, values: npt.ArrayLike) -> None:
        """Count values. One below zero, or NaN, counts as zero: a clock was set back."""
        # fmax, not maximum: a single NaN would stay in the sum for ever.
        clean = np.fmax(np.asarray(values, dtype=np.float64), 0.0)
        where = np.searchsorted(self._bounds, clean, side="left")
        self._counts += np.bincount(where, minlength=len(self._counts))
        self._total += float(clean.sum())

    def snapshot(self) -> HistogramSnapshot:
        """Return what it holds now."""
        labels = [*map(repr, self._bounds.tolist()), "+Inf"]
        rising = np.cumsum(self._counts).tolist()
        return {"count": rising[-1], "sum": self._total, "buckets": dict(zip(labels, rising))}
