"""A ``kvfast.ops.v1`` capsule as an agent, called through ctypes.

The struct behind the capsule is the compiled backend's seam; other people's ops are usually written
in C. Here they are reachable without our compiled modules, slowly.
"""

from __future__ import annotations

import ctypes
import datetime
from typing import Any, Final

from ..agent_ops import Sample
from ..contract import OPS_CAPSULE

CAPSULE_TYPE: Final = type(datetime.datetime_CAPI)


class _Telemetry(ctypes.Structure):
    _fields_ = [
        ("start_us", ctypes.c_int64),
        ("post_us", ctypes.c_int64),
        ("xfer_us", ctypes.c_int64),
        ("bytes", ctypes.c_uint64),
        ("descriptors", ctypes.c_uint64),
    ]


_STATUS: Final = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint64)
_TELEMETRY: Final = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint64, ctypes.POINTER(_Telemetry)
)


class _OpsV1(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("status", _STATUS),
        ("telemetry", _TELEMETRY),
        ("release", _STATUS),
    ]


class CapsuleAgent:
    """Three functions of a capsule, which this keeps alive.

    Raises
    ------
    TypeError
        If the capsule is not named ``kvfast.ops.v1``.
    ValueError
        If its version, size or functions are not as they must be.
    """

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule
        self._ops = _open(capsule)

    def status_code(self, handle: int) -> int:
        """Return a handle's status code."""
        return int(self._ops.status(self._ops.context, handle))

    def telemetry_code(self, handle: int) -> tuple[int, Sample]:
        """Return a status code, and xfer_us, post_us, bytes, descriptors."""
        out = _Telemetry()
        code = int(self._ops.telemetry(self._ops.context, handle, ctypes.byref(out)))
        return code, (out.xfer_us, out.post_us, out.bytes, out.descriptors)

    def release_code(self, handle: int) -> int:
        """Release a handle; return the status code of that."""
        return int(self._ops.release(self._ops.context, handle))


def _open(capsule: Any) -> _OpsV1:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    try:
        address = get(capsule, OPS_CAPSULE.encode())
    except ValueError as error:
        raise TypeError(f"{capsule!r} is not a capsule named {OPS_CAPSULE!r}") from error
    ops = _OpsV1.from_address(address)
    if ops.version != 1 or ops.size < ctypes.sizeof(_OpsV1):
        raise ValueError(
            f"ops version {ops.version}, size {ops.size}: "
            f"expected version 1, size {ctypes.sizeof(_OpsV1)} or more"
        )
    if not (ops.status and ops.telemetry and ops.release):
        raise ValueError("ops lack a function: status, telemetry and release must all be there")
    return ops
