"""What a number was measured on."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Final

_CPUINFO: Final = Path("/proc/cpuinfo")


def machine() -> str:
    """Return processor, load and versions in a line."""
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    return (
        f"{_cpu()}, {os.cpu_count()} cores, load {load}; Python {platform.python_version()}, "
        f"nixl {_version('nixl')}, numpy {_version('numpy')}"
    )


def _cpu() -> str:
    try:
        lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"
