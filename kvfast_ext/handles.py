"""From what a caller hands over (objects, ints, typed arrays) to handle ids.

A handle id is what the table and NIXL's C++ know a handle by: ``handle._handle`` of a
``nixl_xfer_handle``, or the raw int that the inner binding and old NIXL give. A test double may use
anything else as a handle; it then gets an id of its own, and only the double is asked about it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .contract import Handle
from .errors import DuplicateHandleError

_MAX_ID: Final = 2**64
# Test doubles use 128-bit ints (uuid4().int). The largest prime below 2**64 spreads them.
_FOLD: Final = 2**64 - 59
_NEVER_HANDLES: Final = (
    *(str, bytes, bytearray, float, complex, bool, type(None), np.inexact),
    *(dict, set, frozenset, list, tuple),
)
_POINTER_ALIGNMENT: Final = 8


def describe(handle: Handle) -> str:
    """Return how a message names a handle."""
    inner = getattr(handle, "_handle", handle)
    return f"0x{inner:x}" if type(inner) is int else repr(handle)


def flatten(handles: Iterable[Any]) -> Iterator[Handle]:
    """Yield single handles from a mix of handles and typed arrays of raw ids."""
    for item in handles:
        if is_typed_array(item):
            yield from raw_ids(item).tolist()
        else:
            yield item


def is_typed_array(value: object) -> bool:
    """Tell whether `value` is an array of raw ids: a buffer, or something numpy can view (torch)."""
    if isinstance(value, (int, np.generic)) or hasattr(type(value), "_handle"):
        return False
    if isinstance(value, (bytes, bytearray)):
        return False
    return isinstance(value, (np.ndarray, memoryview)) or _has_buffer(value) or _is_tensor(value)


def raw_ids(array: Any) -> npt.NDArray[np.uint64]:
    """Return a typed array of raw ids as a contiguous uint64 array.

    Raises
    ------
    TypeError
        If the items are not 8-byte integers, or a tensor is not on the CPU.
    ValueError
        If there is more than one dimension, or an id is negative.
    """
    ids = _as_numpy(array)
    if ids.dtype.kind not in "ui" or ids.dtype.itemsize != 8:
        raise TypeError(f"handle ids must be 8-byte unsigned ints, not {ids.dtype} ({type(array).__name__})")
    if ids.ndim != 1:
        raise ValueError(f"handle ids must be one-dimensional, not of shape {ids.shape}")
    if ids.dtype.kind == "i" and ids.size and ids.min() < 0:
        raise ValueError(f"handle id {int(ids.min())} is negative")
    return np.ascontiguousarray(ids, dtype=np.uint64)


def plain_key(handle: Handle) -> tuple[int, Handle]:
    """Return the id of a handle, and the object to keep (None where the id says it all).

    Raises
    ------
    TypeError
        If `handle` is of a type that is never a handle.
    ValueError
        If it is a negative int.
    """
    if type(handle) is not int:
        inner = getattr(handle, "_handle", None)
        if type(inner) is int and not isinstance(handle, _NEVER_HANDLES):
            if not 0 <= inner < _MAX_ID:
                raise ValueError(f"handle id {inner} of {handle!r} is no unsigned 8-byte int")
            return inner, handle
        handle, is_int = _as_int(handle)
        if not is_int:
            return id(handle), handle
    if handle < 0:
        raise ValueError(f"handle id {handle} is negative")
    return (handle, None) if handle < _MAX_ID else (handle % _FOLD, handle)


def id_only_key(handle: Handle) -> tuple[int, Handle]:
    """Like `plain_key`, for ops that know handles by nothing but their 8-byte ids."""
    key, kept = plain_key(handle)
    if kept is not None and type(getattr(kept, "_handle", None)) is not int:
        raise TypeError(
            f"a handle for these ops must be an 8-byte int or have one in _handle, not {handle!r}"
        )
    return key, kept


def check_pointer(key: int, handle: Handle) -> None:
    """Refuse an id that can't be the address of a NIXL transfer request: NIXL would crash on it."""
    if key < 4096 or key % _POINTER_ALIGNMENT:
        raise ValueError(
            f"{describe(handle)} is not a NIXL transfer handle: an id is the address of an aligned object"
        )


def refuse_duplicates(keys: Iterable[int], handles: Iterable[Handle]) -> None:
    """Raise DuplicateHandleError if one call names a handle twice."""
    seen: set[int] = set()
    for key, handle in zip(keys, handles):
        if key in seen:
            raise DuplicateHandleError(f"handle {describe(handle)} is named twice in one call")
        seen.add(key)


def _as_int(handle: Handle) -> tuple[Any, bool]:
    if isinstance(handle, _NEVER_HANDLES):
        hint = "; give handles one by one: add(req_id, *handles)" if isinstance(handle, (list, tuple)) else ""
        raise TypeError(f"a handle must be a nixl_xfer_handle or an int, not {handle!r}{hint}")
    if isinstance(handle, (int, np.integer)):
        return operator.index(handle), True
    return handle, False


def _has_buffer(value: object) -> bool:
    try:
        memoryview(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def _is_tensor(value: object) -> bool:
    # Not isinstance: torch is never imported here.
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "numpy")


def _as_numpy(array: Any) -> npt.NDArray[Any]:
    if _is_tensor(array):
        device = str(array.device)
        if device != "cpu":
            raise TypeError(f"handle ids must be in CPU memory, not in a tensor on {device}")
        array = array.detach().numpy()
    return np.asarray(array)
