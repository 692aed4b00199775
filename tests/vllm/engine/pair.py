"""A running pair, and requests that go through both of its servers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from tests.vllm.engine import client
from tests.vllm.engine.client import Answer
from tests.vllm.engine.figures import Run
from tests.vllm.engine.prompts import OUTPUT_TOKENS, Prompt, PromptBook
from tests.vllm.engine.server import Server
from tests.vllm.engine.setups import Setup

_REMOTE_DECODE: Final[dict[str, Any]] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_AT_ONCE: Final = 4

Role = Literal["prefill", "decode"]
StartServer = Callable[[Setup, Role], Server]


@dataclass(frozen=True, slots=True)
class Prefilled:
    """What decode needs to go on with a request."""

    request_id: str
    transfer: dict[str, Any]


class Pair:
    """One prefill and one decode."""

    def __init__(self, setup: Setup, prompts: PromptBook, start: StartServer) -> None:
        self.setup = setup
        self.prompts = prompts
        self._start = start
        self.prefill = start(setup, "prefill")
        try:
            self.decode = start(setup, "decode")
        except BaseException:
            self.prefill.end()
            raise

    def wait_until_ready(self) -> None:
        """Wait for both."""
        self.prefill.wait_until_ready()
        self.decode.wait_until_ready()

    def renew_prefill(self) -> None:
        """Start another prefill in the place of one that was killed."""
        self.prefill.end()
        self.prefill = self._start(self.setup, "prefill")
        self.prefill.wait_until_ready()

    def end(self) -> None:
        """End both."""
        try:
            self.prefill.end()
        finally:
            self.decode.end()

    @property
    def reader(self) -> Server:
        """The server whose handles the transfers are."""
        return self.prefill if self.setup.reader == "prefill" else self.decode

    # ---- requests

    def prefilled(self, prompt: Prompt) -> Prefilled:
        """Have a prompt prefilled."""
        request_id = uuid.uuid4().hex
        answer = client.complete(self.prefill.port, prompt.tokens, 1, _REMOTE_DECODE, request_id)
        assert answer.status == 200, answer
        assert answer.tokens == prompt.expected[:1]
        assert answer.transfer["do_remote_prefill"] is True
        return Prefilled(request_id, answer.transfer)

    def decoded(self, prompt: Prompt, prefilled: Prefilled | None) -> Answer:
        """Have decode go on with a prompt, or do all of it where nothing was prefilled."""
        port = self.decode.port
        if prefilled is None:
            return client.complete(port, prompt.tokens, OUTPUT_TOKENS)
        return client.complete(port, prompt.tokens, OUTPUT_TOKENS, prefilled.transfer, prefilled.request_id)

    def served(self, prompts: Sequence[Prompt], run: Run) -> None:
        """Send prompts through both servers; every token must be a single engine's."""
        started = time.monotonic()
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            answers = list(threads.map(lambda prompt: self.decoded(prompt, self.prefilled(prompt)), prompts))
        run.seconds += time.monotonic() - started
        compare(prompts, answers, run)

    def alone(self, prompts: Sequence[Prompt], run: Run) -> None:
        """Have decode serve prompts without a prefill: it is healthy."""
        compare(prompts, [self.decoded(prompt, None) for prompt in prompts], run)

    @contextmanager
    def held(self, prompts: Sequence[Prompt]) -> Iterator[list[Future[Answer]]]:
        """Stop prefill, have decode ask it for what it has prefilled, and continue it at the end.

        In the block, the transfers of all prompts are outstanding: prefill answers nothing, and what was
        posted can't end.
        """
        prefilled = [self.prefilled(prompt) for prompt in prompts]
        known = len(self._started())
        self.prefill.pause()
        with ThreadPoolExecutor(len(prompts)) as threads:
            try:
                answers = [threads.submit(self.decoded, *both) for both in zip(prompts, prefilled)]
                self.decode.wait("all are started", lambda: len(self._started()) == known + len(prompts))
                yield answers
            finally:
                self.prefill.go_on()

    def _started(self) -> list[str]:
        return self.decode.logged(r"start_load_kv( \(push\))? for request")

    # ---- afterwards

    def wait_until_blocks_are_back(self) -> None:
        """Wait until neither server holds a block."""
        for server in (self.prefill, self.decode):
            server.wait_for_metric("vllm:kv_cache_usage_perc", 0)


def compare(prompts: Sequence[Prompt], answers: Sequence[Answer], run: Run) -> None:
    """Compare every token with the single engine's."""
    wrong = []
    for prompt, answer in zip(prompts, answers, strict=True):
        run.requests += 1
        run.tokens += len(answer.tokens)
        if answer.tokens != prompt.expected:
            run.wrong += 1
            wrong.append(f"{answer.status} {answer.finish}: {answer.tokens}, not {prompt.expected}")
    assert not wrong, "\n".join(wrong)
