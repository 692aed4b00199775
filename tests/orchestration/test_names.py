"""An agent's name as str and as bytes: one name, kept as a plain str."""

from __future__ import annotations

from typing import Any

import pytest

from kvfast import checks
from kvfast_ext.names import peer_name
from tests.orchestration.rigs import ReceiveRig, ends


class Text(str):
    """Hashes and compares in its own way."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return self is other


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("prefill-0", "prefill-0"),
        (b"prefill-0", "prefill-0"),
        ("préfill", "préfill"),
        ("préfill".encode(), "préfill"),
        (Text("P"), "P"),
        ("a b\n", "a b\n"),
    ],
)
def test_a_name_is_kept_as_a_plain_str(value: str | bytes, name: str) -> None:
    kept = peer_name("peer", value)
    assert (type(kept), kept) == (str, name)


@pytest.mark.parametrize("value", [None, 5, bytearray(b"P"), memoryview(b"P"), ["P"], object()], ids=repr)
def test_what_is_no_name_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^the peer must be a str or bytes, not "):
        peer_name("the peer", value)


@pytest.mark.parametrize("value", ["", b"", Text("")])
def test_an_empty_name_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^the peer must not be empty"):
        peer_name("the peer", value)


@pytest.mark.parametrize("value", [b"P\xff", b"\xed\xa0\x80", b"\xff" * 10**6])
def test_bytes_that_are_not_utf_8_are_refused_in_few_words(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"^the peer is not UTF-8 at byte ") as caught:
        peer_name("the peer", value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (None, ()),
        ("P", ("P",)),
        (b"P", ("P",)),
        ([b"P", "Q", "P"], ("P", "Q")),
        ({b"P": 1}, ("P",)),
    ],
)
def test_the_peers_of_a_request_in_either_form(value: Any, names: tuple[str, ...]) -> None:
    assert checks.peers(value) == names


def test_a_request_whose_peer_was_named_in_bytes_knows_that_peer(rig: ReceiveRig) -> None:
    rig.track("R", 1, blocks=[[1]], peer=b"P0")
    rig.states("DISCONNECT", 1)
    assert ends(rig.poll()) == (set(), {"R"}, set())
    assert rig.receiver.guard.is_dead("P0")
