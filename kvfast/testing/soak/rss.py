"""Resident memory of this process."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Final

_MB: Final = 1 << 20


def peak_rss_mb() -> float:
    """Return the largest resident memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / _MB


def rss_mb() -> float:
    """Return the resident memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / _MB
