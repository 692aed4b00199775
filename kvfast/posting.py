"""Starting transfers, so that no handle is lost on the way, whatever raises.

A handle is *prepared*, then *posted*. From the call that posts it on, its bytes may move, and only a
sweep can tell when that is over; before, it is an object that nobody else knows. So:

* ``prepare`` raises: there is no handle. The ones prepared before it were not posted: released.
* ``transfer`` raises on a handle: it was not posted, so it is released at once. Where the release is
  refused it is kept like one in flight, and its check tells what becomes of it. It is kept too where
  its check says that it is in flight: a caller's own function may do more than post.
* ``transfer`` raises ``nixlRepostActiveError``: it is in flight, by an earlier post. It is kept.
* ``transfer`` returns ``"ERR"``: it may have been posted in part. It is kept, and its check tells.
* ``transfer`` raises what is no error (Ctrl-C): whether it was posted can't be known. It is kept.

* Anything else raises (the ``repr`` of a handle, a status that is no state): as that.

After the first failure no more is posted. Every way out names the handles to keep.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvfast_ext import states
from kvfast_ext.contract import Handle, Ops
from kvfast_ext.loglater import LogLater

logger = logging.getLogger(__name__)

Prepare = Callable[[], Handle]
Transfer = Callable[[Handle], Any]


@dataclass(slots=True)
class Posted:
    """What came of starting some transfers. Made by the caller, so that nothing can lose it.

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


class Starter:
    """Starts transfers that go into one table.

    Parameters
    ----------
    ops : Ops
        What releases a handle that was not posted.
    admit : callable
        The table's; what it refuses is not posted.
    lines : LogLater
        Gets a line for each such handle whose release is refused.
    """

    def __init__(self, ops: Ops, admit: Callable[[Handle], int], lines: LogLater) -> None:
        self._ops = ops
        self._admit = admit
        self._lines = lines

    def start(
        self, posted: Posted, prepares: Sequence[Prepare], transfer: Transfer, may_post: Callable[[], bool]
    ) -> None:
        """Prepare all, then post them in order, up to the first failure; never raises.

        ``may_post`` is asked before each post: a failure reported by another thread meanwhile stops it.
        """
        handles: dict[int, Handle] = {}  # prepared and not posted
        try:
            if self._prepare(handles, prepares, posted):
                self._post_all(handles, transfer, may_post, posted)
        except BaseException as error:
            posted.failure, posted.error = f"posting it was broken off: {_safe_repr(error)}", error
        for handle in handles.values():
            self._give_up(handle, posted)

    def _prepare(self, handles: dict[int, Handle], prepares: Sequence[Prepare], posted: Posted) -> bool:
        for prepare in prepares:
            try:
                handle = prepare()
                # What the table would refuse must be found out before it is posted.
                key = self._admit(handle)
                if key in handles:
                    raise ValueError(f"handle {handle!r} was prepared twice")
            except BaseException as error:
                posted.failure, posted.error = f"a transfer could not be prepared: {_safe_repr(error)}", error
                posted.failed_handles += 1
                return False
            handles[key] = handle
        return True

    def _post_all(
        self,
        handles: dict[int, Handle],
        transfer: Transfer,
        may_post: Callable[[], bool],
        posted: Posted,
    ) -> None:
        for key, handle in list(handles.items()):
            if not may_post():
                posted.failure = "a failure was reported while it was being posted"
            if posted.failure is not None:
                return
            posted.keep.append(handles.pop(key))  # from here on its bytes may move
            self._post(handle, transfer, posted)

    def _post(self, handle: Handle, transfer: Transfer, posted: Posted) -> None:
        try:
            status = transfer(handle)
        except BaseException as error:
            posted.failure = f"posting handle {_safe_repr(handle)} raised {_safe_repr(error)}"
            posted.error = error
            if not (_may_be_posted(error) or self._in_flight(handle)):
                posted.keep.pop()
                posted.failed_handles += self._give_up(handle, posted)
        else:
            if _is_failure(status):
                posted.failure = f"posting handle {_safe_repr(handle)} returned {_safe_repr(status)}"

    def _give_up(self, handle: Handle, posted: Posted) -> bool:
        """Release a handle that was not posted; keep it where that is refused, and return False."""
        if getattr(handle, "_released", False) is True:
            return True  # by the caller's own function, before it raised: a second time would free it twice
        error = self._ops.release(handle)
        if error is not None:
            text = "release of handle %s refused before it was posted, kept: %s"
            self._lines.add(logger, logging.WARNING, text, _safe_repr(handle), _safe_repr(error))
            posted.keep.append(handle)
        return error is None

    def _in_flight(self, handle: Handle) -> bool:
        if getattr(handle, "_released", False) is True:
            return False  # NIXL knows it no more, and must not be asked
        return self._ops.status(handle)[0] == states.IN_PROG


def keep_handles(table: Any, req_id: str, handles: Sequence[Handle], peer: str | None) -> str | None:
    """Put handles into the table, all at once; return what went wrong, if anything did.

    A handle that is in the table already was posted twice: it is safe where it is. One that is refused
    for another reason has changed since it was prepared, as by a release: the others are kept.
    """
    try:
        table.add(req_id, *handles, peer=peer)
    except Exception as error:
        if len(handles) > 1:
            for handle in handles:
                keep_handles(table, req_id, [handle], peer)
        return str(error)
    return None


def _is_failure(status: object) -> bool:
    # A caller's own function may return anything: only what is a state can be a bad one.
    code = states.code_of_value(status)
    return code < states.SUCCESS and code != states.ERR_VALUE


def _may_be_posted(error: BaseException) -> bool:
    return not isinstance(error, Exception) or states.code_of_exception(error) == states.REPOST_ACTIVE


def _safe_repr(value: object) -> str:
    # Of a caller's objects: one that can't be shown must not take a posted handle with it.
    try:
        return repr(value)
    except Exception:
        return object.__repr__(value)
