"""Starting transfers, so that no handle is lost on the way, whatever raises.

A handle is *prepared*, then *posted*. From the call that posts it on, its bytes may move, and only a
sweep can tell when that is over; before, it is an object that nobody else knows. So:

* ``prepare`` raises: there is no handle. The ones prepared before it were not posted: released.
* ``transfer`` raises on a handle: it was not posted, so it is released at once. Where the release is
  refused it is kept like one in flight, and its check tells what becomes of it.
* ``transfer`` raises ``nixlRepostActiveError``: it is in flight, by an earlier post. It is kept.
* ``transfer`` returns ``"ERR"``: it may have been posted in part. It is kept, and its check tells.
* ``transfer`` raises what is no error (Ctrl-C): whether it was posted can't be known. It is kept.

After the first failure no more is posted. Every way out names the handles to keep.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvfast_ext import states
from kvfast_ext.contract import Handle, Ops
from kvfast_ext.errors import DuplicateHandleError

logger = logging.getLogger(__name__)

Prepare = Callable[[], Handle]
Transfer = Callable[[Handle], Any]


@dataclass(slots=True)
class Posted:
    """What came of starting some transfers.

    Attributes
    ----------
    keep : list of handle
        Handles that must go into the transfer table.
    failure : str or None
        What went wrong, as a sentence for the log; None if all were posted.
    error : BaseException or None
        The exception behind it, if there was one. One that is no `Exception` is for the caller to
        raise again, once the handles are in the table.
    failed_handles : int
        How many failed here, and will not be seen to fail by a sweep.
    """

    keep: list[Handle] = field(default_factory=list)
    failure: str | None = None
    error: BaseException | None = None
    failed_handles: int = 0

    def raise_interrupt(self) -> None:
        """Raise what was no error; the handles must be in the table by now."""
        if self.error is not None and not isinstance(self.error, Exception):
            raise self.error


def start_transfers(
    ops: Ops,
    prepares: Sequence[Prepare],
    transfer: Transfer,
    may_post: Callable[[], bool] = lambda: True,
) -> Posted:
    """Prepare all, then post them in order, up to the first failure.

    ``may_post`` is asked before each post: a failure reported by another thread meanwhile stops it.
    """
    posted = Posted()
    prepared = _prepare(ops, prepares, posted)
    for i, handle in enumerate(prepared):
        if posted.failure is None and not may_post():
            posted.failure = "a failure was reported while it was being posted"
        if posted.failure is not None:
            posted.keep += _unreleased(ops, prepared[i:])
            break
        _post(ops, handle, transfer, posted)
    return posted


def keep_handles(table: Any, req_id: str, handles: Sequence[Handle], peer: str | None) -> str | None:
    """Put handles into the table, all at once; return what went wrong, if anything did.

    A handle that is in the table already was posted twice. It is safe where it is.
    """
    try:
        table.add(req_id, *handles, peer=peer)
    except DuplicateHandleError as error:
        if len(handles) > 1:
            for handle in handles:
                keep_handles(table, req_id, [handle], peer)
        return str(error)
    return None


def _prepare(ops: Ops, prepares: Sequence[Prepare], posted: Posted) -> list[Handle]:
    handles: dict[int, Handle] = {}
    for prepare in prepares:
        try:
            handle = prepare()
            # What the table would refuse must be found out before it is posted.
            key, _ = ops.admit(handle)
            if key in handles:
                raise ValueError(f"handle {handle!r} was prepared twice")
        except BaseException as error:
            posted.failure, posted.error = f"a transfer could not be prepared: {error!r}", error
            posted.failed_handles += 1
            break
        handles[key] = handle
    return list(handles.values())


def _post(ops: Ops, handle: Handle, transfer: Transfer, posted: Posted) -> None:
    try:
        status = transfer(handle)
    except BaseException as error:
        posted.failure, posted.error = f"posting handle {handle!r} raised {error!r}", error
        kept = [handle] if _may_be_posted(error) else _unreleased(ops, [handle])
        posted.keep += kept
        posted.failed_handles += not kept
    else:
        posted.keep.append(handle)
        if _is_failure(status):
            posted.failure = f"posting handle {handle!r} returned {status!r}"


def _is_failure(status: object) -> bool:
    # A caller's own function may return anything: only what is a state can be a bad one.
    code = states.code_of_value(status)
    return code < states.SUCCESS and code != states.ERR_VALUE


def _may_be_posted(error: BaseException) -> bool:
    return not isinstance(error, Exception) or states.code_of_exception(error) == states.REPOST_ACTIVE


def _unreleased(ops: Ops, handles: Sequence[Handle]) -> list[Handle]:
    """Release handles that were not posted; return those whose release was refused."""
    kept: list[Handle] = []
    for handle in handles:
        error = ops.release(handle)
        if error is not None:
            logger.warning("release of handle %r refused before it was posted, kept: %r", handle, error)
            kept.append(handle)
    return kept
