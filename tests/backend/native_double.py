"""A NIXL without NIXL: a compiled library, a binding object over it, and the Python classes around that.

kvfast finds the C++ agent behind a binding object by what pybind11 and NIXL's wheels look like. This
imitates just that, so that native calls can be tested where a real NIXL would not play along: another
layout, missing symbols, exceptions thrown across the boundary.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from tests.backend.doubles import ERRORS, NIXL_STATUSES, PROC
from tests.backend.engines import new_capsule

SOURCE: Final = Path(__file__).with_suffix(".cpp")
PACKAGE: Final = "kvfast_native_double"
ABI_ID: Final = b"system_libstdcpp_gxx_abi_1xxx_use_cxx11_abi_1"
THROW_IN: Final = {"status": 1, "telemetry": 2, "release": 3, "status, no std::exception": 4}


def compiler() -> str | None:
    return shutil.which(os.environ.get("CXX") or "g++")


def build(folder: Path, *flags: str) -> Path:
    """Compile the library; sanitizers that are preloaded here are not for the compiler."""
    library = folder / "libnixl_double.so"
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [
        str(compiler()),
        "-std=c++17",
        "-O1",
        "-fPIC",
        "-shared",
        *flags,
        str(SOURCE),
        "-o",
        str(library),
    ]
    subprocess.run(command, check=True, env=env)
    return library


class Request(ctypes.Structure):
    """``nixlXferReqH`` of the double; its address is the handle id."""

    _fields_ = [
        ("state", ctypes.c_int32),
        ("release_code", ctypes.c_int32),
        ("telemetry_code", ctypes.c_int32),
        ("throws", ctypes.c_int32),
        ("released", ctypes.c_int32),
        ("checks", ctypes.c_int32),
        ("misuses", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("telemetry", ctypes.c_int64 * 5),
    ]


class CppAgent(ctypes.Structure):
    """``nixlAgent`` of the double."""

    _fields_ = [("magic", ctypes.c_int64), ("layout", ctypes.c_int64), ("calls", ctypes.c_int64)]


class pybind11_type(type):  # noqa: N801 - pybind11's own name
    pass


class nixlAgent(metaclass=pybind11_type):  # noqa: N801 - NIXL's own name
    """The binding object: raw ids in, statuses out, exceptions for negative ones."""

    __module__ = f"{PACKAGE}._bindings"

    def __init__(self) -> None:
        self.cpp = CppAgent(0x6E69786C, 0, 0)
        self.conduit_calls: list[tuple[bytes, bytes]] = []
        self.answers_conduit: Any = lambda: new_capsule(ctypes.addressof(self.cpp), b"9nixlAgent")
        self.python_calls: list[str] = []

    def _pybind11_conduit_v1_(self, abi_id: bytes, type_info: Any, kind: bytes) -> Any:
        self.conduit_calls.append((abi_id, kind))
        get_name = ctypes.pythonapi.PyCapsule_GetName
        get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
        known = (
            abi_id == ABI_ID and kind == b"raw_pointer_ephemeral" and get_name(type_info) == b"St9type_info"
        )
        return self.answers_conduit() if known else None

    def getXferStatus(self, handle: int) -> int:  # noqa: N802
        return self._checked("status", handle, Request.from_address(handle).state)

    def getXferTelemetry(self, handle: int) -> Any:  # noqa: N802
        request = Request.from_address(handle)
        self._checked("telemetry", handle, request.telemetry_code)
        words = list(request.telemetry)
        return SimpleNamespace(
            postDuration=words[1], xferDuration=words[2], totalBytes=words[3], descCount=words[4]
        )

    def releaseXferReq(self, handle: int) -> None:  # noqa: N802
        request = Request.from_address(handle)
        request.misuses += request.state == PROC
        if self._checked("release", handle, request.release_code) == 0:
            request.released += 1

    def _checked(self, method: str, handle: int, code: int) -> int:
        self.python_calls.append(method)
        request = Request.from_address(handle)
        request.misuses += request.released != 0
        if code < 0:
            raise ERRORS[code](NIXL_STATUSES[code][0])
        return code


class nixl_xfer_handle:  # noqa: N801 - NIXL's own name
    """As NIXL's: it releases itself when it is collected, unless it was marked as released."""

    __module__ = f"{PACKAGE}._api"
    __slots__ = ("__weakref__", "_agent", "_handle", "_released")

    def __init__(self, agent: nixlAgent, value: int) -> None:
        self._handle = value
        self._agent = agent
        self._released = False

    def release(self) -> None:
        if not self._released:
            self._agent.releaseXferReq(self._handle)
            self._released = True

    def __del__(self) -> None:
        if not self._released:
            self._agent.releaseXferReq(self._handle)


class nixl_agent:  # noqa: N801 - NIXL's own name
    """As NIXL's: takes handle objects, and the binding object is its ``agent``."""

    __module__ = f"{PACKAGE}._api"

    def __init__(self) -> None:
        self.agent = nixlAgent()

    def check_xfer_state(self, handle: Any) -> str:
        return {0: "DONE", 1: "PROC"}.get(self.agent.getXferStatus(handle._handle), "ERR")

    def get_xfer_telemetry(self, handle: Any) -> Any:
        return self.agent.getXferTelemetry(handle._handle)

    def release_xfer_handle(self, handle: Any) -> None:
        handle.release()


def load(bindings: ModuleType, library: Path) -> None:
    """Load the library as the file of the binding module; what was loaded before stays so."""
    bindings.__file__ = str(library)
    vars(bindings).setdefault("loaded", []).append(ctypes.CDLL(str(library)))


def modules(library: Path) -> dict[str, ModuleType]:
    """Return what goes into ``sys.modules``, with the library loaded."""
    bindings, api = ModuleType(f"{PACKAGE}._bindings"), ModuleType(f"{PACKAGE}._api")
    load(bindings, library)
    for code, (_, name) in NIXL_STATUSES.items():
        setattr(bindings, name, ERRORS[code])
    bindings.nixlAgent = nixlAgent  # type: ignore[attr-defined]
    api.nixl_agent = nixl_agent  # type: ignore[attr-defined]
    api.nixl_xfer_handle = nixl_xfer_handle  # type: ignore[attr-defined]
    return {module.__name__: module for module in (bindings, api)}


class Requests:
    """Requests of one agent, and whether any was misused."""

    def __init__(self, inner: nixlAgent, count: int = 32) -> None:
        self.inner = inner
        self.array = (Request * count)()
        for n, request in enumerate(self.array):
            request.state = PROC
            request.telemetry[:] = [7, 100 + n, 200 + n, 300 + n, 400 + n]

    def __getitem__(self, n: int) -> Any:
        return self.array[n]

    def id(self, n: int) -> int:
        return ctypes.addressof(self.array) + n * ctypes.sizeof(Request)

    def handle(self, n: int) -> nixl_xfer_handle:
        return nixl_xfer_handle(self.inner, self.id(n))

    def released(self, *which: int) -> list[int]:
        return [self.array[n].released for n in which]

    def misuses(self) -> int:
        return sum(request.misuses for request in self.array)
