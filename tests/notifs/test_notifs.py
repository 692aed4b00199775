"""Notifications: the handed cases, the round trip, what is refused, and whatever a peer may send."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvfast import notifs
from kvfast.notifs import BadNotif, Consumed, Heartbeat

CASES = Path(__file__).parent.parent / "cases" / "notifs.json"
REASON_LIMIT = 120


def handed() -> list[Any]:
    inputs = [
        (scenario["name"], entry)
        for scenario in json.loads(CASES.read_text(encoding="utf-8"))
        for entry in scenario["inputs"]
    ]
    assert len(inputs) >= 14
    return [pytest.param(entry, id=f"{name}-{i}") for i, (name, entry) in enumerate(inputs)]


def expected_of(entry: dict[str, Any]) -> Consumed | Heartbeat | None:
    if entry["is"] == "consumed":
        return Consumed(entry["req_id"], entry["count"])
    if entry["is"] == "heartbeat":
        return Heartbeat(tuple(entry["req_ids"]))
    assert entry["is"] == "bad"
    return None


def check(raw: bytes, expected: Consumed | Heartbeat | None) -> None:
    """Check what a message reads as; None: it is malformed."""
    parsed = notifs.parse(raw)
    if expected is None:
        assert isinstance(parsed, BadNotif)
        assert parsed.raw is raw
        assert 0 < len(parsed.reason) <= REASON_LIMIT
    else:
        assert parsed == expected


@pytest.mark.parametrize("entry", handed())
def test_handed_case(entry: dict[str, Any]) -> None:
    raw = bytes.fromhex(entry["hex"]) if "hex" in entry else entry["bytes"].encode()
    check(raw, expected_of(entry))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"r:1", Consumed("r", 1)),
        (b"r:999999999", Consumed("r", 999_999_999)),
        (b"r:000000007", Consumed("r", 7)),
        (b"::1", Consumed(":", 1)),
        (b"a b\n:2", Consumed("a b\n", 2)),
        ("ü:3".encode(), Consumed("ü", 3)),
        (b"HB:2", Heartbeat(("2",))),
        (b"HB:x:2", Heartbeat(("x:2",))),
        (b"HB:HB:x", Heartbeat(("HB:x",))),
        (b"HB:,a,,b,", Heartbeat(("a", "b"))),
        (b"HB:a,a", Heartbeat(("a", "a"))),
        (b"hb:2", Consumed("hb", 2)),
        (b"HB", None),
        (b":", None),
        (b"r:1 ", None),
        (b"r: 1", None),
        (b"r:1\n", None),
        (b"r:+1", None),
        (b"r:1_0", None),
        (b"r:0x1", None),
        (b"r:000", None),
        (b"r:1000000000", None),
        (b"r:0000000001", None),
        ("r:٣".encode(), None),  # a digit to int() and to str.isdigit()
        ("r:²".encode(), None),  # a digit to str.isdigit() only
        (b"r\xff:1", None),
        (b"HB:\xff", None),
        (b"r:1\x00", None),
    ],
)
def test_edges_of_the_format(raw: bytes, expected: Consumed | Heartbeat | None) -> None:
    check(raw, expected)


@pytest.mark.parametrize("raw", ["r:1", None, 1, bytearray(b"r:1"), memoryview(b"r:1"), [b"r:1"], object()])
def test_what_is_not_bytes_is_bad(raw: object) -> None:
    parsed = notifs.parse(raw)
    assert isinstance(parsed, BadNotif)
    assert parsed.raw is raw
    assert type(raw).__name__ in parsed.reason


def test_bytes_that_misbehave_are_read_as_bytes() -> None:
    class Spiteful(bytes):
        def decode(self, encoding: str = "", errors: str = "") -> str:
            raise RuntimeError("spite")

    assert notifs.parse(Spiteful(b"r:1")) == Consumed("r", 1)


@pytest.mark.parametrize(
    "raw",
    [
        b"x" * 10_000,
        b"r:" + b"9" * 10_000,
        b":" + b"1" * 10_000,
        b"\xff" * 10_000,
        b"\xff" * 40,
        "\U000e0001".encode() * 40,
    ],
)
def test_a_reason_is_short_however_long_the_message(raw: bytes) -> None:
    parsed = notifs.parse(raw)
    assert isinstance(parsed, BadNotif)
    assert len(parsed.reason) <= REASON_LIMIT
    assert parsed.reason.endswith("...")


def test_results_are_frozen_and_compare_by_value() -> None:
    for parsed, field in (
        (Consumed("r", 1), "count"),
        (Heartbeat(("r",)), "req_ids"),
        (BadNotif(b"", "why"), "raw"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(parsed, field, 2)
    assert len({Consumed("r", 1), Consumed("r", 1), Heartbeat(("r",)), Heartbeat(("r",))}) == 2


ids = st.text(min_size=1).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text))


@settings(deadline=None)
@given(ids.filter(lambda text: not f"{text}:".startswith("HB:")), st.integers(1, 999_999_999))
@example("a:b:1", 2)
@example("HB1", 1)
@example(":", 999_999_999)
@example("\x00", 1)
def test_consumed_round_trip(req_id: str, count: int) -> None:
    assert notifs.parse(notifs.consumed(req_id, count)) == Consumed(req_id, count)


@settings(deadline=None)
@given(st.lists(ids.filter(lambda text: "," not in text), max_size=8))
@example([])
@example(["HB:a", ":", "b:1"])
def test_heartbeat_round_trip(req_ids: list[str]) -> None:
    assert notifs.parse(notifs.heartbeat(req_ids)) == Heartbeat(tuple(req_ids))
    assert notifs.heartbeat(iter(req_ids)) == notifs.heartbeat(req_ids)


def test_built_messages_are_vllms() -> None:
    assert notifs.consumed("cmpl-a:b", 2) == b"cmpl-a:b:2"
    assert notifs.heartbeat(["r1", "r2"]) == b"HB:r1,r2"
    assert notifs.heartbeat([]) == b"HB:"


@pytest.mark.parametrize(
    ("req_id", "count", "error", "named"),
    [
        ("", 1, ValueError, "''"),
        ("HB", 1, ValueError, "'HB'"),  # "HB:1" extends the lease of a request "1"
        ("HB:", 1, ValueError, "'HB:'"),
        ("HB:r1", 1, ValueError, "'HB:r1'"),
        ("\ud800", 1, ValueError, r"'\\ud800'"),
        (b"r", 1, TypeError, "b'r'"),
        (None, 1, TypeError, "None"),
        ("r", 0, ValueError, "0"),
        ("r", -1, ValueError, "-1"),
        ("r", 1_000_000_000, ValueError, "1000000000"),
        ("r", True, TypeError, "True"),
        ("r", 1.0, TypeError, "1.0"),
        ("r", "1", TypeError, "'1'"),
    ],
)
def test_consumed_refuses(req_id: Any, count: Any, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=f"{named}$") as caught:
        notifs.consumed(req_id, count)
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("req_ids", "error", "named"),
    [
        ("r1,r2", TypeError, "'r1,r2'"),
        (b"r1", TypeError, "b'r1'"),
        (["r1", 2], TypeError, "2"),
        (["r1", ""], ValueError, "''"),
        (["r1", "a,b"], ValueError, "'a,b'"),
        (["\udfff"], ValueError, r"'\\udfff'"),
    ],
)
def test_heartbeat_refuses(req_ids: Any, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=f"{named}$") as caught:
        notifs.heartbeat(req_ids)
    assert type(caught.value) is error


def random_message(rng: random.Random) -> bytes:
    """Return bytes: half of them plain noise, half of pieces that a notification is made of."""
    if rng.random() < 0.5:
        return rng.randbytes(rng.randrange(24))
    pieces = (
        b":",
        b":",
        b":",
        b"HB:",
        b",",
        b"r1",
        b"0",
        b"7",
        b"123456789",
        b"-",
        b"+",
        b" ",
        b"_",
        b"\xff",
        b"\xc2\xb2",
    )
    return b"".join(rng.choices(pieces, k=rng.randrange(6)))


def test_no_random_message_raises_and_what_is_read_obeys_the_rules() -> None:
    rng = random.Random(20_240_611)
    seen = dict.fromkeys((Consumed, Heartbeat, BadNotif), 0)
    for _ in range(100_000):
        raw = random_message(rng)
        parsed = notifs.parse(raw)
        seen[type(parsed)] += 1
        if isinstance(parsed, Consumed):
            assert notifs.parse(notifs.consumed(parsed.req_id, parsed.count)) == parsed
            head, _, digits = raw.rpartition(b":")
            assert head == parsed.req_id.encode()
            assert int(digits) == parsed.count
            assert set(digits) <= set(b"0123456789")
            assert len(digits) <= 9
        elif isinstance(parsed, Heartbeat):
            assert raw.startswith(b"HB:")
            assert notifs.parse(notifs.heartbeat(parsed.req_ids)) == parsed
        else:
            assert parsed.raw is raw
            assert 0 < len(parsed.reason) <= REASON_LIMIT
    # Seeded: that every kind came up says that the fuzz still reaches all of the parser.
    assert min(seen.values()) > 500, seen


@settings(deadline=None)
@given(st.binary(max_size=40) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_no_message_raises(raw: bytes) -> None:
    assert isinstance(notifs.parse(raw), cast(tuple[type, ...], (Consumed, Heartbeat, BadNotif)))
