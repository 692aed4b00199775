"""The soak's own parts: it must see what it looks for, and do the same again with the same seed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvfast.demo.pattern import pattern
from kvfast.testing import FakeClock
from kvfast.testing.soak.agents import LATE_S, MALFORMED, FaultyAgent, InjectedError, NotifFaults
from kvfast.testing.soak.events import Events
from kvfast.testing.soak.leaks import growth_mb, series, simulated
from kvfast.testing.soak.memory import BlockPool, Share, Witness
from kvfast.testing.soak.plan import EventPlan, event_plans, request_plan
from kvfast.testing.soak.ring import Positions, RankMemory, WriteOrder, decode_write, encode_write
from kvfast.testing.soak.settings import FAULTS, SoakSettings, parse_faults
from kvfast.testing.soak.sources import Sources
from kvfast.testing.soak.svg import line_plot

SETTINGS = SoakSettings(requests=600, block_bytes=64, pool_blocks=8, rank_blocks=8)


class TestPlan:
    def test_the_same_seed_gives_the_same_faults_under_every_policy(self) -> None:
        other = replace(SETTINGS, policy="first-error", backend="python", window=3)
        plans = [request_plan(SETTINGS, n) for n in range(500)]
        assert plans == [request_plan(other, n) for n in range(500)]
        assert list(event_plans(SETTINGS)) == list(event_plans(other)) != []
        assert plans != [request_plan(replace(SETTINGS, seed=1), n) for n in range(500)]

    def test_leaving_a_fault_out_moves_no_other(self) -> None:
        fewer = replace(SETTINGS, faults=tuple(f for f in FAULTS if f != "prepare"))
        for n in range(500):
            assert request_plan(fewer, n).faults == request_plan(SETTINGS, n).faults - {"prepare"}

    def test_every_fault_comes(self) -> None:
        in_requests = set().union(*(request_plan(SETTINGS, n).faults for n in range(2000)))
        kinds = {plan.kind for plan in event_plans(replace(SETTINGS, requests=2000, mode="push"))}
        assert in_requests | kinds == set(FAULTS)

    def test_no_fault_comes_unasked(self) -> None:
        none = replace(SETTINGS, faults=())
        assert list(event_plans(none)) == []
        assert not any(request_plan(none, n).faults for n in range(500))

    def test_network_faults_come_only_where_they_are_possible(self) -> None:
        kinds = {plan.kind for plan in event_plans(replace(SETTINGS, faults=()), ["net-cut"])}
        assert kinds == {"net-cut"}


class TestSettings:
    def test_faults_are_read_by_name(self) -> None:
        assert parse_faults("all") == tuple(FAULTS)
        assert parse_faults("none") == ()
        assert set(parse_faults("abort, stop")) == {"abort", "stop"}
        with pytest.raises(ValueError, match="'stopp'"):
            parse_faults("stop,stopp")

    @pytest.mark.parametrize("wrong", [{"mode": "both"}, {"policy": "none"}, {"ranks": 0}, {"minutes": 0}])
    def test_a_bad_setting_is_named(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            SoakSettings(**wrong)


def make_witness() -> tuple[Any, BlockPool, Witness]:
    memory = np.zeros((2, 8, 64), np.uint8)
    pool = BlockPool(8)
    return memory, pool, Witness(memory, pool, canary_s=1.0, begin=0.0)


class TestWitness:
    share = Share(column=1, source=5, rank="prefill1", positions=(3, 4), handles=(70, 71))

    def test_right_bytes_are_right(self) -> None:
        memory, _, witness = make_witness()
        memory[1, [6, 7]] = pattern(5, [3, 4], 64)
        assert witness.check_finished("r", [self.share], [6, 7], 0.0, 1.0)
        assert witness.corruptions.total == 0
        assert witness.bytes_checked == 128

    def test_one_wrong_byte_is_a_corruption_with_its_handle_and_rank(self) -> None:
        memory, _, witness = make_witness()
        memory[1, [6, 7]] = pattern(5, [3, 4], 64)
        memory[1, 7, 63] ^= 1
        assert not witness.check_finished("r", [self.share], [6, 7], 0.0, 1.0)
        (found,) = witness.corruptions.shown
        assert (found.kind, found.request, found.handle, found.rank) == ("finished", "r", 71, "prefill1")
        assert (found.block, found.wrong_bytes, found.seconds) == (7, 1, 1.0)

    def test_what_lands_in_a_canary_is_seen_and_its_old_owner_named(self) -> None:
        memory, pool, witness = make_witness()
        blocks = pool.take(2)
        witness.plant("r", [self.share], blocks, now=0.0)
        memory[1, blocks[0]] = pattern(5, [3], 64)[0]
        witness.check_canaries(0.9)
        assert len(pool) == 6, "a canary is held until its time is over"
        witness.check_canaries(1.0)
        (found,) = witness.corruptions.shown
        assert (found.kind, found.request, found.handle, found.rank) == ("canary", "r", 70, "prefill1")
        assert len(pool) == 8

    def test_an_untouched_canary_is_no_corruption(self) -> None:
        _, pool, witness = make_witness()
        witness.plant("r", [self.share], pool.take(2), now=0.0)
        witness.check_canaries(2.0)
        assert witness.corruptions.total == 0
        assert (witness.watching, witness.canaries_checked) == (0, 2)

    def test_the_block_that_was_freed_last_goes_first(self) -> None:
        _, pool, _ = make_witness()
        first = pool.take(2)
        pool.give_back(first)
        assert pool.take(2) == first


class TestRing:
    def test_a_freed_position_comes_back_with_other_bytes(self) -> None:
        rank, decode = RankMemory(3, 8, 64), Positions(8)
        taken = decode.take(2)
        assert (rank.memory[taken] == pattern(3, taken, 64)).all()
        rank.overwrite(taken)
        decode.freed(taken)
        decode.freed(taken)  # told twice
        assert not rank.holds(taken[0])
        assert len(decode) == 8
        again = [p for p in decode.take(8) if p >= 8]
        assert again == [8, 9]
        assert (rank.memory[[0, 1]] == pattern(3, again, 64)).all()

    def test_an_order_survives_the_wire(self) -> None:
        order = WriteOrder("soak:7", 0.5, 3, [1, 9], [4, 5])
        assert decode_write(encode_write(order)) == order


class _Peers:
    """The part of a policy that Events asks, with nothing to wait for."""

    def remove_peer(self, peer: str) -> None: ...
    def peer_lost(self, peer: str) -> None: ...
    def is_removing(self, peer: str) -> bool:
        return False


class TestEvents:
    def test_two_kills_of_one_rank_ask_for_one_successor(self) -> None:
        clock, sources = FakeClock(), Sources(8)
        asked: list[dict[str, Any]] = []
        introduced = {"column": 0, "key": 4, "name": "prefill0", "metadata": "", "address": 0}
        sources.put(sources.make(introduced))
        kills = [EventPlan(1, kind, 0, 0.5, False) for kind in ("kill-same", "kill-new")]
        events = Events(object(), _Peers(), sources, kills, asked.append, clock=clock)
        for _ in kills:
            events.step(1)
        clock.advance(1.0)
        events.step(1)
        assert events.counts == {"kill-same": 1, "kill-new": 1}
        replaced = [message for message in asked if message["do"] == "replace"]
        assert replaced == [{"do": "replace", "key": 4, "name": "prefill0"}]


class _Agent:
    def __init__(self) -> None:
        self.released: list[int] = []

    def release_xfer_handle(self, handle: int) -> None:
        self.released.append(handle)

    def get_xfer_telemetry(self, handle: int) -> int:
        return handle


class TestFaultyAgent:
    def test_a_release_raises_as_often_as_it_was_told(self) -> None:
        inner = _Agent()
        agent = FaultyAgent(inner)
        agent.refuse_release(4, 2)
        for _ in range(2):
            with pytest.raises(InjectedError):
                agent.release_xfer_handle(4)
        agent.release_xfer_handle(4)
        agent.release_xfer_handle(5)
        assert inner.released == [4, 5]

    def test_telemetry_raises_until_the_handle_is_gone(self) -> None:
        agent = FaultyAgent(_Agent())
        agent.refuse_telemetry(4)
        with pytest.raises(InjectedError):
            agent.get_xfer_telemetry(4)
        agent.release_xfer_handle(4)
        assert agent.get_xfer_telemetry(4) == 4


class TestNotifFaults:
    def send(self, *faults: str) -> tuple[list[bytes], NotifFaults, FakeClock]:
        sent: list[bytes] = []
        clock = FakeClock()
        between = NotifFaults(lambda _peer, message: sent.append(message), lambda _: frozenset(faults), clock)
        between.send_notif("peer", b"soak:1:1")
        return sent, between, clock

    def test_lost(self) -> None:
        assert self.send("notif-lost")[0] == []

    def test_twice(self) -> None:
        assert self.send("notif-twice")[0] == [b"soak:1:1"] * 2

    def test_malformed_ones_come_beside_it(self) -> None:
        bad, good = self.send("notif-bad")[0]
        assert bad in MALFORMED
        assert good == b"soak:1:1"

    def test_late(self) -> None:
        sent, between, clock = self.send("notif-late")
        between.send_late()
        assert sent == []
        clock.advance(LATE_S)
        between.send_late()
        assert sent == [b"soak:1:1"]


class TestLeakRun:
    def test_simulated_handles_all_leave(self, backend: Any) -> None:
        sampled = series(simulated(backend), 10_000)
        assert sampled[-1][0] >= 10_000

    def test_growth_is_seen_after_the_first_third(self) -> None:
        warm = [(n, min(n, 10.0)) for n in range(30)]
        assert growth_mb(warm) == 0.0
        assert growth_mb([(n, float(n)) for n in range(30)]) == 10.0

    def test_the_plot_holds_every_point(self) -> None:
        svg = line_plot([(0, 1.0), (5, 2.0), (10, 2.0)], "a < b", "handles", "MB")
        assert svg.count(",", svg.index("points="), svg.index('"', svg.index("points=") + 8)) == 3
        assert "a &lt; b" in svg
