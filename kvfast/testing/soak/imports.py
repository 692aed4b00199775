"""What the processes of a soak do without, so that a killed rank's successor is there soon."""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Final

_OPTIONAL_SINCE: Final = (1, 5)


def leave_torch_out() -> None:
    """Keep NIXL from loading torch, which takes seconds. Before 1.5 it can't do without."""
    try:
        version = importlib.metadata.version("nixl")
    except importlib.metadata.PackageNotFoundError:
        return
    if tuple(map(int, version.split(".")[:2])) >= _OPTIONAL_SINCE:
        sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
