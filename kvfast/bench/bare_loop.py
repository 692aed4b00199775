"""A bare C++ loop over NIXL's own functions, compiled when it is asked for: the least that asking takes.

It gets at the agent and the functions by itself, not through kvfast: what is measured must not stand
on what it is measured against.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from .errors import BenchError

_SOURCE: Final = Path(__file__).with_suffix(".cpp")
_ABI: Final = b"system_libstdcpp_gxx_abi_1xxx_use_cxx11_abi_1"  # NIXL's wheels are built with it
_SYMBOLS: Final = (
    "_ZNK9nixlAgent13getXferStatusEP12nixlXferReqH",
    "_ZNK9nixlAgent16getXferTelemetryEPK12nixlXferReqHR17nixlXferTelemetry",
    "_ZNK9nixlAgent14releaseXferReqEP12nixlXferReqH",
)
_TELEMETRY_BYTES: Final = 256  # sizeof(Telemetry) of bare_loop.cpp

Burst = Callable[[], float]


def compiler() -> str | None:
    """Return the C++ compiler to use, or None where there is none."""
    return shutil.which(os.environ.get("CXX", "g++"))


def build(folder: Path) -> ctypes.CDLL:
    """Compile the loop into `folder` and load it; BenchError if that can't be done."""
    cxx = compiler()
    if cxx is None:
        raise BenchError("no C++ compiler: set CXX, or install g++")
    target = folder / "bare_loop.so"
    command = [cxx, "-std=c++17", "-O2", "-shared", "-fPIC", "-o", str(target), str(_SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"{cxx} can't compile the bare loop: {done.stderr.strip()}")
    library = ctypes.CDLL(str(target))
    for name in ("check_all", "finish_all"):
        getattr(library, name).restype = ctypes.c_int64
    for name in ("agent_type", "read_state"):
        getattr(library, name).restype = ctypes.c_void_p
    library.type_info_name.restype = ctypes.c_char_p
    return library


class BareLoop:
    """The loop over one live agent.

    Parameters
    ----------
    library : ctypes.CDLL
        What `build` returned.
    binding : object
        NIXL's inner binding object (``nixl_agent.agent``).
    """

    def __init__(self, library: ctypes.CDLL, binding: Any) -> None:
        self._library = library
        self._binding = binding  # keeps the C++ agent alive
        self._agent = ctypes.c_void_p(_agent_pointer(library, binding))
        module = ctypes.CDLL(sys.modules[type(binding).__module__].__file__)
        # dlsym of a module looks into what it was linked with, so this is the agent's own libnixl.
        self._status, self._telemetry, self._release = (
            ctypes.cast(getattr(module, symbol), ctypes.c_void_p) for symbol in _SYMBOLS
        )

    def check(self, ids: Iterable[int]) -> Burst:
        """Return a burst that asks for the state of handles in flight: seconds of a pass."""
        handles, count = _pointers(ids)

        def burst() -> float:
            spent = self._library.check_all(self._status, self._agent, handles, ctypes.c_int64(count))
            return _seconds(spent, "a handle was not in flight")

        return burst

    def finish(self, ids: Iterable[int]) -> float:
        """Ask state and telemetry of DONE handles, and release them: seconds of the pass."""
        handles, count = _pointers(ids)
        rows = ctypes.create_string_buffer(_TELEMETRY_BYTES * count)
        spent = self._library.finish_all(
            self._status, self._telemetry, self._release, self._agent, handles, ctypes.c_int64(count), rows
        )
        return _seconds(spent, "a handle was not DONE, or its release was refused")


def simulated(library: ctypes.CDLL, states: Any) -> Burst:
    """Return a burst of the loop over a state array: seconds of a pass."""
    handles, count = _pointers(range(len(states)))
    status = ctypes.cast(library.read_state, ctypes.c_void_p)
    pointer = ctypes.c_void_p(states.ctypes.data)

    def burst() -> float:
        spent = library.check_all(status, pointer, handles, ctypes.c_int64(count))
        return _seconds(spent, "a handle was not in flight")

    return burst


def _agent_pointer(library: ctypes.CDLL, binding: Any) -> int:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype = ctypes.c_void_p
    get.argtypes = (ctypes.py_object, ctypes.c_char_p)
    wanted = new(library.agent_type(), library.type_info_name(), None)
    capsule = binding._pybind11_conduit_v1_(_ABI, wanted, b"raw_pointer_ephemeral")
    if capsule is None:
        raise BenchError(f"the binding was not built for the C++ ABI {_ABI.decode()}")
    return int(get(capsule, b"9nixlAgent"))


def _pointers(ids: Iterable[int]) -> tuple[ctypes.Array[ctypes.c_void_p], int]:
    values = list(ids)
    return (ctypes.c_void_p * len(values))(*values), len(values)


def _seconds(spent: int, problem: str) -> float:
    if spent < 0:
        raise BenchError(problem)
    return spent / 1e9
