"""Counters, gauges and histograms of what kvfast does.

Whoever counts only appends to a queue, which Python does in one step whatever other threads do: no
count is lost, and nobody on the way of a sweep ever waits for a lock. The queue is folded into
totals when somebody reads them, and by whoever finds it long, so its memory is bounded.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from operator import index
from typing import Final

import numpy as np

from kvfast_ext.contract import SweepResult, Transfers

from .histogram import POST_SECONDS, SWEEP_SECONDS, TRANSFER_SECONDS, Histogram, HistogramSnapshot
from .metric_names import COUNTERS, GAUGES
from .prometheus import PrometheusExporter
from .ratelimit import RateLimit

__all__ = ["GaugeProvider", "HistogramSnapshot", "PrometheusExporter", "Stats"]

logger = logging.getLogger(__name__)

GaugeProvider = Callable[[], Mapping[str, float]]

# Folding costs some tens of microseconds, however many: rare enough, and short enough for one sweep.
_FOLD_AT: Final = 128


class Stats:
    """Totals of one Receiver, Sender or PeerGuard, or of several that share it.

    Every method may be called from any thread. The names are in `kvfast.metric_names` and in
    docs/metrics.md.

    Parameters
    ----------
    clock : callable
        Gives the time in seconds, for the rate of log lines.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._queue: Final[deque[tuple[str, int] | float | Transfers]] = deque()
        self._folding: Final = threading.Lock()
        self._listing: Final = threading.RLock()  # reentrant: a finaliser may run anywhere and unset
        self._counts: Final = dict.fromkeys(COUNTERS, 0)
        self._histograms: Final = {
            "transfer_seconds": Histogram(TRANSFER_SECONDS),
            "post_seconds": Histogram(POST_SECONDS),
            "sweep_seconds": Histogram(SWEEP_SECONDS),
        }
        self._providers: tuple[GaugeProvider, ...] = ()
        self._infos: tuple[dict[str, str], ...] = ()
        self._log_limit: Final = RateLimit(clock=clock)

    def count(self, name: str, n: int = 1) -> None:
        """Add `n` to a counter.

        Raises
        ------
        ValueError
            If there is no counter of that name, or `n` is negative.
        TypeError
            If `n` is not an integer.
        """
        if name not in COUNTERS:
            raise ValueError(f"there is no counter {name!r}; there are {', '.join(COUNTERS)}")
        if index(n) < 0:
            raise ValueError(f"a counter can't go down: {name} by {n!r}")
        self._note((name, n))

    def observe_sweep(self, seconds: float) -> None:
        """Add the time of one sweep."""
        self._note(float(seconds))

    def observe_transfers(self, transfers: Transfers) -> None:
        """Add handles that reached DONE. The arrays must not change after this.

        Raises
        ------
        TypeError
            If `transfers` is not a `Transfers`.
        """
        if not isinstance(transfers, Transfers):
            raise TypeError(f"transfers must be a Transfers, not {transfers!r}")
        if len(transfers.xfer_us) or transfers.unsampled:
            self._note(transfers)

    def observe_result(self, result: SweepResult) -> None:
        """Add all that a sweep's result counts: its transfers, failures, releases and retries."""
        self.observe_transfers(result.transfers)
        if result.failures:
            self.count("failed_transfers", len(result.failures))
        if result.blind_releases:
            self.count("blind_releases", result.blind_releases)
        if result.release_retries:
            self.count("release_retries", result.release_retries)

    def set_gauges(self, provider: GaugeProvider) -> None:
        """Have a provider asked for gauges whenever somebody reads them, and never else.

        It returns values by gauge name. It is asked from the reader's thread, so it must be safe
        from any. There can be several: their values are added up, or the greatest counts. It is
        kept until `unset_gauges`.
        """
        with self._listing:
            self._providers = (*self._providers, provider)

    def unset_gauges(self, provider: GaugeProvider) -> None:
        """Ask a provider no more. One that is not set is fine."""
        with self._listing:
            self._providers = tuple(kept for kept in self._providers if kept != provider)

    def set_info(self, *, backend: str, ops: str, scan: str) -> None:
        """Tell how the object that counts here runs. Several may; equal ones are one."""
        info = {"backend": backend, "ops": ops, "scan": scan}
        with self._listing:
            if info not in self._infos:
                self._infos = (*self._infos, info)

    @property
    def infos(self) -> tuple[dict[str, str], ...]:
        """What `set_info` was told, each once."""
        return tuple(map(dict, self._infos))

    def snapshot(self) -> dict[str, float | HistogramSnapshot]:
        """Return every metric by its name.

        Counters are ints and always there. Gauges are floats: 0 without a provider, all NaN where
        one of the providers could not be read. Histograms are dicts: `HistogramSnapshot`.
        """
        gauges = self._gauges()  # before the counters: what can't be read is counted
        with self._folding:
            self._fold()
            histograms = {name: histogram.snapshot() for name, histogram in self._histograms.items()}
            return {**self._counts, **gauges, **histograms}

    def _note(self, item: tuple[str, int] | float | Transfers) -> None:
        queue = self._queue
        queue.append(item)
        # If the lock is taken, somebody folds already: never wait for them here.
        if len(queue) >= _FOLD_AT and self._folding.acquire(blocking=False):
            try:
                self._fold()
            finally:
                self._folding.release()

    def _fold(self) -> None:
        """Move what is queued into the totals. Only under the lock."""
        pop = self._queue.popleft
        sweeps: list[float] = []
        batches: list[Transfers] = []
        for _ in range(len(self._queue)):
            item = pop()
            if isinstance(item, tuple):
                self._counts[item[0]] += item[1]
            elif isinstance(item, Transfers):
                batches.append(item)
            else:
                sweeps.append(item)
        if sweeps:
            self._histograms["sweep_seconds"].add(sweeps)
        if batches:
            self._fold_transfers(batches)

    def _fold_transfers(self, batches: list[Transfers]) -> None:
        rows = {
            name: np.concatenate([getattr(batch, name) for batch in batches])
            for name in ("xfer_us", "post_us", "bytes", "descriptors")
        }
        # Divided, not multiplied by 1e-6: 1000 us must be the bound 0.001 exactly.
        self._histograms["transfer_seconds"].add(rows["xfer_us"] / 1e6)
        self._histograms["post_seconds"].add(rows["post_us"] / 1e6)
        unsampled = sum(batch.unsampled for batch in batches)
        self._counts["transfers"] += len(rows["xfer_us"]) + unsampled
        self._counts["unsampled_transfers"] += unsampled
        self._counts["bytes"] += int(rows["bytes"].sum())
        self._counts["descriptors"] += int(rows["descriptors"].sum())

    def _gauges(self) -> dict[str, float]:
        values = dict.fromkeys(GAUGES, 0.0)
        for provider in self._providers:
            for name, value in self._ask(provider).items():
                # np.maximum keeps a NaN; max() would drop it, depending on the order.
                combine = np.maximum if GAUGES[name].combine == "max" else np.add
                values[name] = float(combine(values[name], value))
        return values

    def _ask(self, provider: GaugeProvider) -> dict[str, float]:
        """Return one provider's gauges; all are NaN if it raises, or gives what is no gauge."""
        try:
            given = {name: float(value) for name, value in provider().items()}
            unknown = given.keys() - GAUGES.keys()
            if unknown:
                raise ValueError(f"there is no gauge {', '.join(map(repr, sorted(unknown)))}")
        except Exception as error:
            # A reader of numbers must not fall with one of them.
            self.count("failed_gauges")
            dropped = self._log_limit.allow(provider)
            if dropped is not None:
                logger.warning("gauges of %r can't be read: %r (%d more before)", provider, error, dropped)
            return dict.fromkeys(GAUGES, math.nan)
        return given
