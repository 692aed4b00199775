"""kvfast's numbers beside vLLM's: from the worker to wherever vLLM exports its own.

vLLM's stats are dicts of lists that workers send, the scheduler joins, and the API server observes.
kvfast adds two lists: ``kvfast_counts``, pairs of a counter's name and what it grew by, and
``kvfast_info``, how each worker runs. Whoever does not know them leaves them alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats, NixlPromMetrics
from vllm.v1.metrics.utils import create_metric_per_engine

from kvfast.metric_names import COUNTERS, INFO_HELP, INFO_LABELS, INFO_NAME, prometheus_name
from kvfast.stats import Stats

# What happens in a worker and vLLM does not count, or counts otherwise; the rest of kvfast's counters are
# about parts that do not run in vLLM, or are vLLM's own under another name.
COUNTED: Final = (
    "transfers",
    "bytes",
    "descriptors",
    "unsampled_transfers",
    "failed_transfers",
    "finished_requests",
    "failed_requests",
    "stalled_requests",
    "expired_leases",
    "bad_notifs",
    "blind_releases",
    "release_retries",
    "dead_peers",
)
COUNTS: Final = "kvfast_counts"
INFO: Final = "kvfast_info"
# Reading the counters costs some tens of microseconds, and a step may take less than one millisecond.
_READ_EVERY_S: Final = 1.0


class KvfastStats(NixlKVConnectorStats):  # type: ignore[misc]
    """vLLM's stats of a worker, and kvfast's."""

    def reset(self) -> None:
        """Forget everything that was recorded."""
        super().reset()
        self.data[COUNTS] = []
        self.data[INFO] = []

    def is_empty(self) -> bool:
        """Tell whether there is nothing to send."""
        return bool(super().is_empty() and not self.data.get(COUNTS) and not self.data.get(INFO))

    def aggregate(self, other: Any) -> Any:
        """Take in another worker's stats; they may be plain ones."""
        for name in (COUNTS, INFO):
            self.data.setdefault(name, [])
        return super().aggregate(other)


class CounterReader:
    """What a worker's counters grew by since they were read last."""

    def __init__(self, stats: Stats, clock: Callable[[], float] = time.monotonic) -> None:
        self._stats = stats
        self._clock = clock
        self._next = clock() + _READ_EVERY_S  # so that a worker that has done nothing has nothing to tell
        self._sent: dict[str, int] = dict.fromkeys(COUNTED, 0)
        self._infos_sent = 0

    def expedite(self) -> None:
        """Have the next reading take place whenever it comes: something has ended. From any thread."""
        self._next = float("-inf")

    def add_to(self, data: dict[str, list[Any]], at_once: bool = False) -> None:
        """Add the growth to a worker's stats: once a second, or now if there is news for sure."""
        now = self._clock()
        if now < self._next and not at_once:
            return
        self._next = now + _READ_EVERY_S
        snapshot = self._stats.snapshot()
        for name, sent in self._sent.items():
            value = snapshot[name]
            if isinstance(value, int) and value > sent:
                data[COUNTS].append([name, value - sent])
                self._sent[name] = value
        from kvfast import __version__

        for info in self._stats.infos[self._infos_sent :]:
            data[INFO].append([info["backend"], info["ops"], info["scan"], __version__])
            self._infos_sent += 1


class KvfastPromMetrics(NixlPromMetrics):  # type: ignore[misc]
    """vLLM's Prometheus metrics of the connector, and kvfast's."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._kvfast_counters = {
            name: create_metric_per_engine(
                self._counter_cls(
                    name=prometheus_name(COUNTERS[name]),
                    documentation=COUNTERS[name].help,
                    labelnames=labelnames,
                ),
                per_engine_labelvalues,
            )
            for name in COUNTED
        }
        self._kvfast_info = self._gauge_cls(
            name=INFO_NAME, documentation=INFO_HELP, labelnames=[*labelnames, *INFO_LABELS]
        )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add a step's stats to the metrics."""
        super().observe(transfer_stats_data, engine_idx)
        for name, n in transfer_stats_data.get(COUNTS, ()):
            self._kvfast_counters[name][engine_idx].inc(n)
        for info in transfer_stats_data.get(INFO, ()):
            self._kvfast_info.labels(*self.per_engine_labelvalues[engine_idx], *info).set(1)
