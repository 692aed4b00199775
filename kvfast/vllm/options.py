"""The ``kvfast_*`` keys of vLLM's ``kv_connector_extra_config``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from kvfast_ext import BACKEND_NAMES
from kvfast_ext.contract import SCANS, check_seconds

PREFIX: Final = "kvfast_"


@dataclass(frozen=True, slots=True)
class Options:
    """What an operator may set, each as ``kvfast_<name>``.

    Parameters
    ----------
    backend : {"auto", "cython", "python"}
        Who polls.
    scan : {"watch", "all"}
        Which handles a poll asks about.
    lost_s : float
        Seconds that a LOST handle's blocks are kept.
    stall_after_s : float, optional
        Log and count requests that are outstanding for longer.

    Raises
    ------
    TypeError, ValueError
        If a value is not one of these; the message names the key.
    """

    backend: str = "auto"
    scan: str = "watch"
    lost_s: float = 30.0
    stall_after_s: float | None = None

    def __post_init__(self) -> None:
        _check_word("backend", self.backend, ("auto", *BACKEND_NAMES))
        _check_word("scan", self.scan, SCANS)
        check_seconds(PREFIX + "lost_s", self.lost_s)
        if self.stall_after_s is not None:
            check_seconds(PREFIX + "stall_after_s", self.stall_after_s, positive=True)

    @classmethod
    def read(cls, extra_config: Mapping[str, Any] | None) -> Options:
        """Take kvfast's keys out of a connector's extra configuration; refuse unknown ones."""
        given = {key: value for key, value in (extra_config or {}).items() if key.startswith(PREFIX)}
        known = [PREFIX + field.name for field in fields(cls)]
        unknown = sorted(given.keys() - set(known))
        if unknown:
            raise ValueError(f"unknown option {', '.join(unknown)}; kvfast has {', '.join(known)}")
        return cls(**{key.removeprefix(PREFIX): value for key, value in given.items()})


def _check_word(name: str, value: object, words: tuple[str, ...]) -> None:
    if value not in words:
        raise ValueError(f"{PREFIX}{name} must be one of {', '.join(words)}, not {value!r}")
