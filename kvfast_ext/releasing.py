"""`try_release` in plain Python: the reference, and what Python ops do in both backends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from .contract import Handle, Ops
from .handles import flatten, is_typed_array, refuse_duplicates
from .states import must_wait


def admitted(ops: Ops, handles: Any) -> list[tuple[int, Handle]]:
    """Return id and handle of each; refuse what is no handle, and duplicates."""
    if not is_typed_array(handles) and (
        isinstance(handles, (str, bytes, bytearray)) or not isinstance(handles, Iterable)
    ):
        raise TypeError(f"handles must be a sequence of handles or an array of ids, not {handles!r}")
    given = list(flatten([handles] if is_typed_array(handles) else handles))
    found = [(key, key if kept is None else kept) for key, kept in map(ops.admit, given)]
    refuse_duplicates([key for key, _ in found], [handle for _, handle in found])
    return found


def refuse_duplicate_ids(ops: Ops, ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return typed ids as they are, or raise if one is no handle or is there twice."""
    if len(np.unique(ids)) != len(ids):
        refuse_duplicates(ids.tolist(), ids.tolist())
    if len(ids):
        # The smallest is enough to tell an address from a small int; alignment is of all.
        for suspect in {int(ids.min()), *ids[ids % 8 != 0][:1].tolist()}:
            ops.admit(suspect)
    return ids


def release_each(ops: Ops, handles: Any) -> npt.NDArray[np.bool_]:
    """Ask for each handle's state, release those that are safe, and tell which were released.

    All checks come first: an interrupt in one leaves everything as it was. One in a release ends
    the call after that release; the exception carries the answer as ``kvfast_released``.
    """
    found = [handle for _, handle in admitted(ops, handles)]
    safe = [not must_wait(ops.status(handle)[0]) for handle in found]
    released = np.zeros(len(found), np.bool_)
    for i, handle in enumerate(found):
        released[i] = safe[i] and ops.release(handle) is None
        interrupt = ops.take_interrupt()
        if interrupt is not None:
            interrupt.kvfast_released = released  # type: ignore[attr-defined]
            raise interrupt
    return released
