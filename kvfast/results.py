"""What a poll and a close report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

_NOBODY: Final[frozenset[str]] = frozenset()

ResultsT = TypeVar("ResultsT")


@dataclass(frozen=True)
class ReceiveResults:
    """What one `Receiver.poll` reports. Each tracked request is in exactly one of the first three, once.

    Attributes
    ----------
    finished : frozenset of str
        All bytes are there.
    failed : frozenset of str
        A failure was seen, and nothing can land in the blocks any more.
    aborted : frozenset of str
        Aborted, and nothing can land in the blocks any more.
    stalled : frozenset of str
        Outstanding for longer than ``stall_after_s``, told once. Not an end: the blocks stay held.
    invalid_block_ids : list of list of int
        The blocks of the failed requests, one list per KV-cache group; empty if none has failed.
        Order: by when the requests were tracked, then as given to `Receiver.track`.
    """

    finished: frozenset[str] = _NOBODY
    failed: frozenset[str] = _NOBODY
    aborted: frozenset[str] = _NOBODY
    stalled: frozenset[str] = _NOBODY
    invalid_block_ids: list[list[int]] = field(default_factory=list)


def nothing_received() -> ReceiveResults:
    """Return what most polls report, at a fraction of the price that the frozen class's own way has.

    Its sets are the class's defaults; the list is new, since a caller may add to it.
    """
    results = object.__new__(ReceiveResults)
    results.__dict__["invalid_block_ids"] = []
    return results


@dataclass(frozen=True, slots=True)
class SendResults:
    """What one `Sender.poll` reports. Each tracked request is in exactly one of the two, once.

    Attributes
    ----------
    finished : frozenset of str
        Every WRITE has landed, or every consumer has read: the blocks may be given back.
    expired : frozenset of str
        The lease is over, and the send had failed or there was none: the blocks may be given back.
    """

    finished: frozenset[str] = _NOBODY
    expired: frozenset[str] = _NOBODY


@dataclass(frozen=True, slots=True)
class Closed(Generic[ResultsT]):
    """What `Receiver.close` and `Sender.close` report.

    Attributes
    ----------
    results : ReceiveResults or SendResults
        What ended while it was closing, and was reported by no poll.
    left : tuple of str
        Requests that had not ended when the time was up. Their blocks must not be given back: bytes
        may still move, or a lease still promises them.
    left_handles : int
        Handles of those requests: in flight, in quarantine, or refused by release.
    errors : tuple of Exception
        What was raised on the way. Each was logged, and none of them stopped the closing.
    """

    results: ResultsT
    left: tuple[str, ...] = ()
    left_handles: int = 0
    errors: tuple[Exception, ...] = ()


NOTHING_SENT: Final = SendResults()
