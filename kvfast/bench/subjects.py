"""Who is measured, by name, and a sweep of each over the same real transfers in flight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Final

from .bare_loop import BareLoop
from .errors import BenchError
from .race import Burst, calls, in_a_row
from .real import Flight
from .vllm_loop import SmallStats, VllmLoop

LOOP: Final = "vLLM's loop"
PYTHON: Final = "python all"
ALL: Final = "cython all"
WATCH: Final = "cython watch"
LIMIT: Final = "bare C++ loop"  # asks about every transfer
LIMIT_WATCH: Final = "bare C++ loop, one handle a request"
SUBJECTS: Final = (LOOP, PYTHON, ALL, WATCH, LIMIT, LIMIT_WATCH)  # as they are shown

Sweep = Callable[[], object]


def sweepers(flight: Flight, backends: Mapping[str, ModuleType]) -> dict[str, Sweep]:
    """Return a sweep of vLLM's loop, and of each scan of the backends (by their names)."""
    loop = VllmLoop(flight.link.agent, dict(flight.transfers), SmallStats(), _refuse)
    sweeps: dict[str, Sweep] = {LOOP: loop.sweep}
    for subject in (PYTHON, ALL, WATCH):
        name, scan = subject.split()
        if name in backends:
            sweeps[subject] = flight.sweeper(backends[name], scan)
    return sweeps


def limits(flight: Flight, bare: BareLoop | None) -> dict[str, Burst]:
    """Return the bare loop over what each scan asks about; nothing where there is none."""
    if bare is None:
        return {}
    newest = [handles[-1]._handle for handles in flight.transfers.values()]
    return {
        LIMIT: bare.check(handle._handle for handle in flight.handles),
        LIMIT_WATCH: bare.check(newest),
    }


def racers(sweeps: Mapping[str, Sweep], limits: Mapping[str, Burst]) -> dict[str, Burst]:
    """Return a burst for each of both, all with the same number of passes."""
    return in_a_row({name: calls(sweep, 1) for name, sweep in sweeps.items()} | dict(limits))


def _refuse(req_id: str, what: object) -> None:
    raise BenchError(f"{req_id}: {what!r} is not in flight")
