"""The baseline: a per-handle loop in Python, as serving engines write it.

Written from the description of what such a loop does at each engine step: for each request and each
of its handles a state check and string compares; for a DONE handle telemetry, statistics and release;
the lists of what is still in progress built anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvfast_ext import Transfers


class SmallStats:
    """Statistics of finished transfers, as lists. Both sides of a comparison fill the same ones."""

    def __init__(self) -> None:
        self.xfer_s: list[float] = []
        self.post_s: list[float] = []
        self.bytes: list[int] = []
        self.descriptors: list[int] = []

    def record(self, telemetry: Any) -> None:
        """Take in NIXL's telemetry of one transfer."""
        self.xfer_s.append(telemetry.xferDuration / 1e6)
        self.post_s.append(telemetry.postDuration / 1e6)
        self.bytes.append(telemetry.totalBytes)
        self.descriptors.append(telemetry.descCount)

    def record_all(self, transfers: Transfers) -> None:
        """Take in the telemetry of one sweep."""
        self.xfer_s += (transfers.xfer_us / 1e6).tolist()
        self.post_s += (transfers.post_us / 1e6).tolist()
        self.bytes += transfers.bytes.tolist()
        self.descriptors += transfers.descriptors.tolist()


class VllmLoop:
    """The loop over a dict of lists of handles.

    Parameters
    ----------
    agent : nixl_agent
        Asked through its public methods.
    transfers : dict of str to list of handles
        Outstanding handles by request; changed by each sweep.
    stats : SmallStats
        Where telemetry goes.
    on_failure : callable
        Called with a request id and a handle or an exception.
    """

    def __init__(
        self,
        agent: Any,
        transfers: dict[str, list[Any]],
        stats: SmallStats,
        on_failure: Callable[[str, Any], None],
    ) -> None:
        self.agent = agent
        self.transfers = transfers
        self.stats = stats
        self.on_failure = on_failure

    def sweep(self) -> set[str]:
        """Ask about every handle; return the requests that are done."""
        done: set[str] = set()
        for req_id, handles in list(self.transfers.items()):
            in_progress = []
            for handle in handles:
                try:
                    state = self.agent.check_xfer_state(handle)
                    if state == "DONE":
                        self.stats.record(self.agent.get_xfer_telemetry(handle))
                        self.agent.release_xfer_handle(handle)
                    elif state == "PROC":
                        in_progress.append(handle)
                    else:
                        self.on_failure(req_id, handle)
                except Exception as error:
                    self.on_failure(req_id, error)
            if in_progress:
                self.transfers[req_id] = in_progress
            else:
                done.add(req_id)
                del self.transfers[req_id]
        return done
