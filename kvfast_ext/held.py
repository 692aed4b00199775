"""Handles that are kept although nobody waits for their bytes: quarantine and refused releases.

Three ways in, one way out, which is a release that succeeds:

* LOST: not released before ``quarantine.lost_s`` has passed, since bytes may still land and nothing
  tells when. If the peer turns out to be dead meanwhile, the handle is FAILED after all.
* FAILED: not released before ``quarantine.failed_s`` has passed (0 by default: in the same sweep).
* DONE, and the release was refused: a leak to count. No request waits for it (``req_id`` is None).

A refused release is tried again with exponential backoff, and logged once for each handle, not once
for each try: at a sweep a millisecond the log would be of little else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from .contract import Handle, Quarantine
from .loglater import LogLater

logger = logging.getLogger(__name__)

# NIXL refuses a release while it can't cancel. Fast first, since blocks wait for it; 2 s at most,
# since each try is a call into a backend that is in trouble.
FIRST_RETRY_S: Final = 0.05
LAST_RETRY_S: Final = 2.0

Release = Callable[[Handle], "BaseException | None"]


@dataclass(slots=True)
class HeldHandle:
    """A handle that waits for its release; ``req_id`` is None if no request waits with it."""

    req_id: str | None
    handle: Handle
    key: int
    peer: int
    since: float
    due: float
    lost: bool = False
    refusals: int = 0
    tried: bool = False  # its release was begun, and nobody has taken note of that yet
    answers: list[BaseException | None] = field(default_factory=list)  # what that release answered


class HeldHandles:
    """All held handles of a table, and when each may be released."""

    def __init__(self, quarantine: Quarantine, lines: LogLater) -> None:
        self._quarantine = quarantine
        self._lines = lines
        self._held: dict[int, HeldHandle] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: int) -> bool:
        return key in self._held and not self._held[key].tried

    def hold_failed(
        self, req_id: str, handle: Handle, key: int, peer: int, now: float, *, lost: bool
    ) -> None:
        """Take in a handle that failed at `now`."""
        wait = self._quarantine.lost_s if lost else self._quarantine.failed_s
        self._held[key] = HeldHandle(req_id, handle, key, peer, now, now + wait, lost)

    def hold_refused(
        self, handle: Handle, key: int, peer: int, now: float, error: BaseException | None
    ) -> None:
        """Take in a DONE handle whose release was refused at `now`."""
        item = HeldHandle(None, handle, key, peer, now, now)
        self._held[key] = item
        self._refused(item, now, error)

    def peer_died(self, is_dead: Callable[[int], bool]) -> None:
        """Turn LOST handles of dead peers into FAILED ones."""
        for item in self._held.values():
            if item.lost and is_dead(item.peer):
                item.lost = False
                item.due = item.since + self._quarantine.failed_s

    def release_due(self, now: float, release: Release) -> tuple[list[HeldHandle], int]:
        """Release what may be released at `now`; return what is gone and how many were second tries."""
        retries = 0
        for item in [item for item in self._held.values() if now >= item.due and not item.tried]:
            retries += item.refusals > 0
            # Noted first: an interrupt here may then leak a handle, but never free it twice. A native
            # release and what takes its answer, `extend`, are one call: an interrupt comes after both.
            answer = map(release, (item.handle,))
            item.tried = True
            item.answers.extend(answer)
        return self.gone(now), retries

    def gone(self, now: float) -> list[HeldHandle]:
        """Return what was released and not forgotten yet; hold on to what was refused."""
        tried = [item for item in self._held.values() if item.tried]
        for item in tried:
            if any(item.answers):
                self._refused(item, now, item.answers[0])
                item.tried, item.answers = False, []
        return [item for item in tried if item.tried]

    def forget(self, item: HeldHandle) -> None:
        """Drop what is gone: the table has taken note of it."""
        del self._held[item.key]

    def items(self) -> list[HeldHandle]:
        """Return all held handles."""
        return list(self._held.values())

    def _refused(self, item: HeldHandle, now: float, error: BaseException | None) -> None:
        item.due = now + min(FIRST_RETRY_S * 2.0 ** min(item.refusals, 16), LAST_RETRY_S)
        item.refusals += 1
        if item.refusals == 1:
            self._lines.add(
                logger,
                logging.WARNING,
                "release refused, will try again: request %s, handle %r: %r (not logged again)",
                item.req_id,
                item.handle,
                error,
            )
