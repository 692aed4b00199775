"""The two polling backends of kvfast, and how one is chosen.

``cython`` is compiled, ``python`` is its twin in plain Python and the reference. Which one runs is
decided by `select_backend`, once, by whoever makes a table; nothing is loaded before.

``auto`` takes ``cython``, and falls back to ``python`` only where the compiled modules are absent
(an installation without a compiler). Modules that are there and fail to load raise: a broken
extension that silently became a slow one would be found out in production.
"""

from __future__ import annotations

import importlib
import os
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Final

from .contract import (
    BACKEND_EXPORTS,
    HandleFailure,
    Quarantine,
    SweepResult,
    Transfers,
    check_backend,
)
from .errors import (
    BackendUnavailableError,
    ClosedError,
    ConcurrentSweepError,
    DuplicateHandleError,
    DuplicateRequestError,
    KvfastError,
    UnknownRequestError,
    WrongThreadError,
)
from .simulated import SimulatedAgent

__all__ = [
    "BACKEND_EXPORTS",
    "BACKEND_NAMES",
    "BackendUnavailableError",
    "ClosedError",
    "ConcurrentSweepError",
    "DuplicateHandleError",
    "DuplicateRequestError",
    "HandleFailure",
    "KvfastError",
    "Quarantine",
    "SimulatedAgent",
    "SweepResult",
    "Transfers",
    "UnknownRequestError",
    "WrongThreadError",
    "backend_name",
    "cython_available",
    "select_backend",
]

BACKEND_NAMES: Final = ("cython", "python")
_COMPILED: Final = ("_native", "_store")


def cython_available() -> bool:
    """Tell whether the compiled modules are installed (not whether they load)."""
    # Not importlib.util.find_spec: that imports the package, which is what may fail.
    folder = str(Path(__file__).parent / "cython_backend")
    return any(PathFinder.find_spec(name, [folder]) is not None for name in _COMPILED)


def select_backend(name: str = "auto") -> ModuleType:
    """Return a backend module.

    Parameters
    ----------
    name : {"auto", "cython", "python"}
        ``auto`` asks the environment variable ``KVFAST_BACKEND`` first, then takes ``cython`` where
        it is installed.

    Raises
    ------
    ValueError
        If `name`, or the environment variable, is none of the three.
    BackendUnavailableError
        If ``cython`` is asked for and not installed.
    ImportError
        If the compiled modules are installed and fail to load.
    """
    chosen = _resolve(name)
    if chosen == "cython" and not cython_available():
        raise BackendUnavailableError(
            "the cython backend is not installed: build kvfast with a C++ compiler "
            "(KVFAST_BUILD_EXT=yes pip install .), or take KVFAST_BACKEND=python"
        )
    return check_backend(importlib.import_module(f"kvfast_ext.{chosen}_backend"))


def backend_name(module: ModuleType) -> str:
    """Return ``"cython"`` or ``"python"`` for a backend module."""
    return module.__name__.rpartition(".")[2].removesuffix("_backend")


def _resolve(name: str) -> str:
    chosen = _checked("backend", name)
    if chosen == "auto":
        chosen = _checked("KVFAST_BACKEND", os.environ.get("KVFAST_BACKEND") or "auto")
    if chosen == "auto":
        chosen = "cython" if cython_available() else "python"
    return chosen


def _checked(what: str, name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a string, not {name!r}")
    if name != "auto" and name not in BACKEND_NAMES:
        raise ValueError(f"{what} must be one of auto, cython, python, not {name!r}")
    return name
