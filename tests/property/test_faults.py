"""Every invariant can fail: with one fault in the code under test, a program finds it out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from kvfast.testing import FakeClock
from tests.property import faults
from tests.property.facts import InvariantBrokenError
from tests.property.faults import Fault, made_as
from tests.property.invariants import INVARIANTS
from tests.property.programs import RECEIVE_PROGRAMS, SEND_PROGRAMS, Program
from tests.property.receive_world import ReceiveWorld
from tests.property.run import Run
from tests.property.search import for_programs
from tests.property.send_world import SendWorld
from tests.property.world import ModelDiffersError
from tests.property.worlds import BACKENDS, LEFT_IN_FLIGHT

pytestmark = pytest.mark.filterwarnings(LEFT_IN_FLIGHT)

PROGRAMS: Final = 2000  # one of so many must find it

Setups = tuple[tuple[str, str], ...]
WorldType = type[ReceiveWorld | SendWorld]
ALL: Final[Setups] = (("python", "all"),)
WATCH: Final[Setups] = (("python", "watch"),)

need_both = pytest.mark.skipif(len(BACKENDS) == 1, reason="the cython backend is not built")


@pytest.fixture(autouse=True)
def dropped_here() -> Iterator[None]:
    """Drop what failing programs leave in this test, not in the next one."""
    yield
    gc.collect()


def by_name(value: object) -> str | None:
    return getattr(value, "__name__", None)


class FoundError(Exception):
    """A program that fails as it should."""


def find(world: WorldType, setups: Setups, wanted: Callable[[AssertionError], bool]) -> None:
    """Look for a program that fails in the way that is wanted; one that fails in another way is no such."""
    programs = RECEIVE_PROGRAMS if world is ReceiveWorld else SEND_PROGRAMS

    def check(program: Program) -> None:
        clock = FakeClock()
        worlds = [world(program.config, backend, scan, clock) for backend, scan in setups]
        try:
            Run(program, worlds, clock).run()
        except (InvariantBrokenError, ModelDiffersError) as error:
            if wanted(error):
                raise FoundError(str(error)) from error

    with pytest.raises(FoundError):
        for_programs(programs, check, PROGRAMS)


def find_broken(number: int, world: WorldType, setups: Setups) -> None:
    """Look for a program that breaks an invariant."""
    find(world, setups, lambda error: getattr(error, "number", None) == number)


@pytest.mark.parametrize(("number", "fault"), faults.RECEIVE, ids=by_name)
def test_receiver(number: int, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    find_broken(number, ReceiveWorld, ALL)


@pytest.mark.parametrize(("number", "fault"), faults.SEND, ids=by_name)
def test_sender(number: int, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    find_broken(number, SendWorld, ALL)


@pytest.mark.parametrize("world", [ReceiveWorld, SendWorld])
def test_scans_that_differ(world: WorldType, monkeypatch: pytest.MonkeyPatch) -> None:
    faults.watch_asks_one_handle_only(monkeypatch)
    find_broken(7, world, ALL + WATCH)


@need_both
@pytest.mark.parametrize(
    ("world", "broken"),
    [
        (ReceiveWorld, faults.NamesBlocksBackwards),
        (ReceiveWorld, faults.CountsMoreReceived),
        (SendWorld, faults.CountsMoreSent),
    ],
    ids=by_name,
)
def test_backends_that_differ(world: WorldType, broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "make", staticmethod(faults.on_python_only(broken)))
    find_broken(7, world, tuple((backend, "watch") for backend in BACKENDS))


def test_every_invariant_was_seen_to_fail() -> None:
    assert {number for number, _ in faults.RECEIVE + faults.SEND} | {7} == set(INVARIANTS)


@pytest.mark.parametrize(
    ("fault", "setups"),
    [
        (made_as(ReceiveWorld, faults.NamesAStallTwice), ALL),
        (made_as(ReceiveWorld, faults.LosesNotifications), ALL),
        (made_as(ReceiveWorld, faults.NamesOneGroup), ALL),
        (faults.keeps_failed_handles, ALL),
        (faults.never_releases, ALL),
        (faults.never_scans_in_full, WATCH),
    ],
    ids=by_name,
)
def test_the_model_sees_more(fault: Fault, setups: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    find(ReceiveWorld, setups, lambda error: isinstance(error, ModelDiffersError))
