"""A LOST handle of a peer that is known to be dead is FAILED; nothing else is covered by a death."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from kvfast_ext import Quarantine
from tests.backend.doubles import DISCONNECT, DONE, LOST
from tests.backend.engines import Engine
from tests.backend.rig import Rig, failures


@pytest.mark.parametrize("same_request", [True, False])
@pytest.mark.parametrize("lost_handle", [1, 9])  # before and after the disconnected one in any scan order
def test_in_the_same_sweep(any_rig: Rig, engine: Engine, lost_handle: int, same_request: bool) -> None:
    order = sorted([5, lost_handle])
    for handle in order:
        any_rig.add("r" if same_request else f"r{handle}", handle, peer="p")
    engine.set(5, DISCONNECT)
    engine.set(lost_handle, LOST)
    result = any_rig.sweep()
    assert [(handle, status, lost) for _, handle, status, lost in failures(result)] == (
        [(1, "NOT_FOUND", False), (5, "REMOTE_DISCONNECT", False)]
        if lost_handle == 1
        else [(5, "REMOTE_DISCONNECT", False), (9, "NOT_FOUND", False)]
    )
    assert result.done == result.failed == ({"r"} if same_request else {f"r{handle}" for handle in order})
    assert any_rig.released(5, lost_handle) == [1, 1]
    assert result.blind_releases == 0


def test_disconnect_after_not_found(any_rig: Rig, engine: Engine) -> None:
    any_rig.add("lost", 1, peer="p")
    any_rig.add("dead", 2, peer="p")
    engine.set(1, LOST)
    first = any_rig.sweep()
    assert (first.done, failures(first)) == (set(), [("lost", 1, "NOT_FOUND", True)])
    assert any_rig.table.quarantined == {"lost"}
    engine.set(2, DISCONNECT)
    second = any_rig.sweep(after=1)
    assert (second.done, second.failed) == ({"lost", "dead"}, {"dead"})
    assert failures(second) == [("dead", 2, "REMOTE_DISCONNECT", False)]  # the lost one was told already
    assert (second.blind_releases, second.retained, any_rig.table.quarantined) == (0, 0, set())


def test_disconnect_before_not_found(any_rig: Rig, engine: Engine) -> None:
    any_rig.add("dead", 2, peer="p")
    any_rig.add("lost", 1, 3, peer="p")
    engine.set(2, DISCONNECT)
    assert any_rig.sweep().done == {"dead"}
    engine.set(1, LOST)
    second = any_rig.sweep(after=1000)
    assert failures(second) == [("lost", 1, "NOT_FOUND", False)]
    assert any_rig.released(1) == [1]
    engine.set(3, LOST)  # the knowledge lasts as long as a handle of that connection is there
    third = any_rig.sweep(after=1000)
    assert (third.done, failures(third)) == ({"lost"}, [("lost", 3, "NOT_FOUND", False)])


def test_a_death_is_remembered_while_only_a_held_handle_is_left(any_rig: Rig, engine: Engine) -> None:
    any_rig.add("dead", 2, peer="p")
    engine.set(2, DISCONNECT)
    engine.refuse(2, -3)
    assert any_rig.sweep().done == set()
    any_rig.add("later", 3, peer="p")  # a new connection: not covered
    engine.set(3, LOST)
    assert failures(any_rig.sweep()) == [("later", 3, "NOT_FOUND", True)]


def test_other_peers_are_not_covered(any_rig: Rig, engine: Engine) -> None:
    any_rig.add("r", 1, peer="p")
    any_rig.add("other", 2, peer="q")
    any_rig.add("none", 3)
    engine.set(1, DISCONNECT)
    engine.set(2, LOST)
    engine.set(3, LOST)
    result = any_rig.sweep()
    assert result.done == {"r"}
    assert {(handle, lost) for _, handle, _, lost in failures(result)} == {(1, False), (2, True), (3, True)}


def test_a_disconnect_without_a_peer_covers_nothing(any_rig: Rig, engine: Engine) -> None:
    any_rig.add("r", 1)
    any_rig.add("s", 2)
    engine.set(1, DISCONNECT)
    engine.set(2, LOST)
    result = any_rig.sweep()
    assert (result.done, any_rig.table.quarantined) == ({"r"}, {"s"})


def test_a_peer_of_the_empty_name_is_a_peer(any_rig: Rig, engine: Engine) -> None:
    any_rig.add("r", 1, peer="")
    any_rig.add("s", 2)
    any_rig.add("t", 3, peer="")
    engine.set(1, DISCONNECT)
    engine.set(2, LOST)
    engine.set(3, LOST)
    result = any_rig.sweep()
    assert (result.done, any_rig.table.quarantined) == ({"r", "t"}, {"s"})
    assert {f.peer for f in result.failures} == {"", None}


@pytest.mark.parametrize("code", [-3, -1, -11, DONE])
def test_only_a_disconnect_means_death(any_rig: Rig, engine: Engine, code: int) -> None:
    any_rig.add("r", 1, peer="p")
    any_rig.add("s", 2, peer="p")
    engine.set(1, code)
    engine.set(2, LOST)
    assert any_rig.sweep().done == {"r"}
    assert any_rig.table.quarantined == {"s"}


def test_a_peer_restarted_under_the_same_name_is_not_covered(any_rig: Rig, engine: Engine) -> None:
    any_rig.add("old", 1, 2, peer="p")
    engine.set(1, DISCONNECT)
    any_rig.sweep()
    any_rig.add("new", 3, 4, peer="p")
    engine.set(3, LOST)  # this one must wait
    engine.set(2, LOST)  # and this one need not
    result = any_rig.sweep()
    assert failures(result) == [("new", 3, "NOT_FOUND", True), ("old", 2, "NOT_FOUND", False)]
    assert (result.done, any_rig.table.quarantined) == ({"old"}, {"new"})
    assert any_rig.released(2, 3) == [1, 0]
    engine.set(4, DISCONNECT)  # the second connection dies as well
    assert any_rig.sweep().done == {"new"}
    assert any_rig.released(3) == [1]


def test_a_peer_restarted_after_its_last_handle_is_not_covered(any_rig: Rig, engine: Engine) -> None:
    any_rig.add("old", 1, peer="p")
    engine.set(1, DISCONNECT)
    assert any_rig.sweep().done == {"old"}
    for after in (0, 100):
        any_rig.sweep(after)
    any_rig.add("new", 3, peer="p")
    engine.set(3, LOST)
    assert any_rig.sweep().done == set()
    assert any_rig.table.quarantined == {"new"}


def test_a_handle_added_in_the_sweep_that_sees_the_death_is_of_the_new_connection(rig: Rig) -> None:
    double = rig.engine.agent
    rig.add("old", 1, peer="p")
    rig.engine.set(1, DISCONNECT)
    double.before["check", 1] = lambda: rig.add("new", 2, peer="p")
    assert rig.sweep().done == {"old"}
    rig.engine.set(2, LOST)
    assert rig.sweep().done == set()
    assert rig.table.quarantined == {"new"}


def test_a_dead_peers_handle_waits_for_failed_s_from_when_it_was_lost(
    backend: ModuleType, engine: Engine, scan: str, make_rig: Callable[..., Rig]
) -> None:
    rig = make_rig(backend, engine, scan, quarantine=Quarantine(lost_s=30, failed_s=4))
    rig.add("lost", 1, peer="p")
    rig.add("dead", 2, peer="p")
    engine.set(1, LOST)
    rig.sweep()
    engine.set(2, DISCONNECT)
    assert rig.sweep(after=3).done == set()
    assert rig.sweep(after=0.5).done == set()
    assert rig.sweep(after=0.5).done == {"lost"}
    assert rig.sweep(after=2.5).done == set()
    assert rig.sweep(after=0.5).done == {"dead"}


def test_outstanding_of_counts_all_generations_and_held_ones(any_rig: Rig, engine: Engine) -> None:
    count = any_rig.table.outstanding_of
    assert count("p") == 0
    any_rig.add("r", 1, 2, 3, peer="p")
    any_rig.add("s", 4, peer="q")
    any_rig.add("t", 5)
    assert (count("p"), count("q"), count("unknown")) == (3, 1, 0)
    engine.set(1, DISCONNECT)
    engine.refuse(1, -3)
    any_rig.sweep()
    assert count("p") == 3  # its release was refused
    any_rig.add("u", 6, 7, peer="p")
    assert count("p") == 5
    engine.set(7, LOST)
    any_rig.sweep()
    assert count("p") == 5
    engine.set(2, DONE)
    engine.refuse(2, -3)
    any_rig.sweep()
    assert count("p") == 5  # done, but NIXL still has the handle
    engine.refuse(1, None)
    engine.refuse(2, None)
    any_rig.sweep(after=10)
    assert count("p") == 3
    any_rig.sweep(after=20)
    assert (count("p"), count("q")) == (2, 1)
    for handle in (3, 4, 6):
        engine.set(handle, DONE)
    any_rig.sweep()
    assert (count("p"), count("q")) == (0, 0)


def test_many_deaths_leave_nothing_behind(any_rig: Rig, engine: Engine) -> None:
    for life in range(30):
        any_rig.add(f"r{life}", 2 * life, 2 * life + 1, peer="p")
        engine.set(2 * life, DISCONNECT)
        engine.set(2 * life + 1, LOST)
        assert any_rig.sweep().done == {f"r{life}"}
        assert any_rig.table.outstanding_of("p") == 0


def test_many_peers_come_and_go_and_none_is_taken_for_another(any_rig: Rig, engine: Engine) -> None:
    # More names than a table keeps: what it forgets, and gives out again, must be nobody's.
    for life in range(25):
        base = 2 * (life % 2)
        for n in range(10):
            any_rig.add(f"a{n}", 4 * n + base, 4 * n + base + 1, peer=f"peer {life} {n}")
        counts = [any_rig.table.outstanding_of(f"peer {life} {n}") for n in range(10)]
        assert counts == [2] * 10
        for n in range(10):
            engine.set(4 * n + base, DISCONNECT if n % 2 else LOST)
            engine.set(4 * n + base + 1, LOST if n % 4 < 2 else DONE)
        result = any_rig.sweep()
        assert result.done == {f"a{n}" for n in (1, 3, 5, 7, 9)}
        lost = {handle for _, handle, _, is_lost in failures(result) if is_lost}
        assert lost == {4 * n + base for n in (0, 2, 4, 6, 8)} | {4 * n + base + 1 for n in (0, 4, 8)}
        assert any_rig.sweep(after=30).done == {f"a{n}" for n in (0, 2, 4, 6, 8)}
        for n in range(10):
            for handle in (4 * n + base, 4 * n + base + 1):
                assert any_rig.released(handle) == [1]
                any_rig.added.remove(handle)
                engine.reuse(handle)
