"""Every number that kvfast counts, in one table: `Stats`, the exporter and the documents read it.

A metric's ``name`` is what `Stats.snapshot` calls it. Prometheus's name is made from it by
`prometheus_name`: ``kvfast_``, then the name, and ``_total`` for a counter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

PREFIX: Final = "kvfast_"

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One number: its name, what kind it is, and what it says in a sentence.

    ``combine`` is how a gauge of several providers becomes one: their sum, or the greatest.
    """

    name: str
    kind: Kind
    help: str
    combine: Literal["sum", "max"] = "sum"


def _counters(**helps: str) -> dict[str, Metric]:
    return {name: Metric(name, "counter", text) for name, text in helps.items()}


COUNTERS: Final = _counters(
    transfers="Handles that reached DONE.",
    bytes="Bytes of the handles that reached DONE, by NIXL's telemetry.",
    descriptors="Descriptors of the handles that reached DONE, by NIXL's telemetry.",
    unsampled_transfers="Handles that reached DONE and had no telemetry: in transfers, in nothing else.",
    failed_transfers="Handles that ended in a failure, or could not be started.",
    finished_requests="Requests that ended as finished.",
    failed_requests="Requests that ended as failed.",
    aborted_requests="Requests that ended as aborted.",
    stalled_requests="Requests that were outstanding for longer than the stall time.",
    expired_leases="Leases that ran out: before a send had finished, or before a receiver's post.",
    sent_notifs="Notifications sent to a peer.",
    failed_notifs="Notifications that could not be sent to a peer.",
    bad_notifs="Notifications from a peer that were malformed, and ignored.",
    notifs_after_end="Notifications for a request that had ended, or more of them than expected.",
    failures_of_unknown_requests="Failures reported for a request that was not tracked, and dropped.",
    blind_releases="LOST handles released at the end of their quarantine, without news of their bytes.",
    release_retries="Refused releases of a handle that were tried again.",
    dead_peers="Peers found to be dead.",
    refused_removals="Removals of a peer that the agent refused: given up.",
    evicted_registrations="Registrations that a full rendezvous gave up, the oldest first.",
    failed_gauges="Readings of gauges that failed.",
)

GAUGES: Final[dict[str, Metric]] = {
    metric.name: metric
    for metric in (
        Metric("outstanding_handles", "gauge", "Handles posted and not known to have ended."),
        Metric("outstanding_requests", "gauge", "Requests tracked and not reported yet."),
        Metric("retained_handles", "gauge", "Ended handles kept: in quarantine, or refused by release."),
        Metric("quarantined_blocks", "gauge", "Blocks of requests that hold a LOST handle."),
        Metric("oldest_outstanding_seconds", "gauge", "Age of the oldest request not reported yet.", "max"),
    )
}

HISTOGRAMS: Final[dict[str, Metric]] = {
    metric.name: metric
    for metric in (
        Metric("transfer_seconds", "histogram", "Time from post to DONE of a handle, by NIXL's telemetry."),
        Metric("post_seconds", "histogram", "Time that NIXL took to post a handle, by its telemetry."),
        Metric("sweep_seconds", "histogram", "Time of one sweep over the outstanding handles."),
    )
}

METRICS: Final[dict[str, Metric]] = {**COUNTERS, **GAUGES, **HISTOGRAMS}

INFO_NAME: Final = PREFIX + "info"
INFO_HELP: Final = "How kvfast runs: its backend, how states are read, how it scans, and its version."
INFO_LABELS: Final = ("backend", "ops", "scan", "version")


def prometheus_name(metric: Metric) -> str:
    """Return a metric's name in Prometheus's text: the family of a histogram, the sample of the rest."""
    return PREFIX + metric.name + ("_total" if metric.kind == "counter" else "")
