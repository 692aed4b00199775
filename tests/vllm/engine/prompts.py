"""Prompts, and what a single engine without any transfer makes of them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from tests.vllm.engine import client
from tests.vllm.engine.server import Server
from tests.vllm.engine.tiny_model import VOCABULARY

OUTPUT_TOKENS: Final = 16
_TWINS: Final = 34
_LENGTHS: Final = (33, 320)  # more than one block of 32 each, none of whole blocks only but by chance
_SEED: Final = 4
# Two engines add up in another order. Where two tokens are nearly as good, either may win, and a
# comparison says nothing. float32 differs by some 1e-5 here.
_MARGIN: Final = 5e-4


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and its greedy output."""

    tokens: list[int]
    expected: tuple[int, ...]


def make_reference(server: Server) -> list[tuple[Prompt, Prompt]]:
    """Return twins, prompts of the same length, with their outputs from one engine."""
    random_numbers = random.Random(_SEED)
    twins = []
    for _ in range(_TWINS):
        length = random_numbers.randint(*_LENGTHS)
        one, other = (_ask(server, random_numbers, length) for _ in range(2))
        if one is not None and other is not None:
            twins.append((one, other))
    outputs = {prompt.expected for pair in twins for prompt in pair}
    assert len(outputs) == 2 * len(twins), "different prompts have the same output: nothing can be told"
    assert len(twins) > _TWINS * 2 // 3
    return twins


def _ask(server: Server, random_numbers: random.Random, length: int) -> Prompt | None:
    tokens = [random_numbers.randrange(3, VOCABULARY) for _ in range(length)]
    answer = client.complete(server.port, tokens, OUTPUT_TOKENS)
    assert len(answer.tokens) == OUTPUT_TOKENS
    return Prompt(tokens, answer.tokens) if answer.margin >= _MARGIN else None


class PromptBook:
    """Hands out each prompt once: what a server has seen before, it has in its prefix cache."""

    def __init__(self, twins: list[tuple[Prompt, Prompt]]) -> None:
        self._left = list(twins)

    def take_twins(self) -> tuple[Prompt, Prompt]:
        """Return two prompts of the same length."""
        return self._left.pop(0)

    def take(self, n: int) -> list[Prompt]:
        """Return an even number of prompts."""
        return [prompt for _ in range(n // 2) for prompt in self.take_twins()]
