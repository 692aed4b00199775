"""Completions and metrics of a vLLM server, over its HTTP interface."""

from __future__ import annotations

import http.client
import json
import re
from dataclasses import dataclass
from typing import Any, Final

# For the slowest request of a test: recomputed after a failure, on a machine that does other things too.
HUNG_AFTER_S: Final = 300.0


class HungRequestError(AssertionError):
    """A request got no answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for a completion: tokens, or an error.

    Attributes
    ----------
    status : int
        The HTTP status.
    tokens : tuple of int
        The tokens that were made.
    finish : str
        vLLM's finish reason; the error's message where there is no completion.
    transfer : dict
        ``kv_transfer_params``, for whoever is to go on with this request.
    margin : float
        By how much, in log probability, the nearest other token was worse, at the closest step.
    """

    status: int
    tokens: tuple[int, ...]
    finish: str
    transfer: dict[str, Any]
    margin: float


def complete(
    port: int,
    prompt: list[int],
    max_tokens: int,
    transfer: dict[str, Any] | None = None,
    request_id: str | None = None,
) -> Answer:
    """Ask for a greedy completion of a list of token ids.

    In push mode prefill finds a decode's registration by the request's id: both must be given the same.
    """
    body: dict[str, Any] = {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "logprobs": 2,
    }
    if transfer is not None:
        body["kv_transfer_params"] = transfer
    try:
        status, text = _ask(port, "POST", "/v1/completions", json.dumps(body), HUNG_AFTER_S, request_id)
    except TimeoutError:
        raise HungRequestError(f"no answer for {HUNG_AFTER_S:.0f} s") from None
    return _read(status, json.loads(text))


def healthy(port: int) -> bool:
    """Tell whether a server answers."""
    try:
        return _ask(port, "GET", "/health", None, 5.0)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def metrics(port: int) -> dict[str, float]:
    """Return a server's metrics, by name and labels, and by name alone: the sum over its labels."""
    found: dict[str, float] = {}
    for line in _ask(port, "GET", "/metrics", None, 30.0)[1].splitlines():
        match = re.match(r"([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)$", line)
        if match is None:
            continue
        value = float(match[3])
        found[match[1]] = found.get(match[1], 0.0) + value
        if match[2]:
            found[match[1] + match[2]] = value
    return found


def _ask(
    port: int, method: str, path: str, body: str | None, timeout_s: float, request_id: str | None = None
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        headers = {"Content-Type": "application/json"}
        if request_id is not None:
            headers["X-Request-Id"] = request_id
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def _read(status: int, answer: dict[str, Any]) -> Answer:
    if status != 200:
        return Answer(status, (), json.dumps(answer), {}, 0.0)
    choice = answer["choices"][0]
    return Answer(
        status,
        tuple(choice["token_ids"] or ()),
        str(choice["finish_reason"]),
        answer.get("kv_transfer_params") or {},
        _margin(choice.get("logprobs") or {}),
    )


def _margin(logprobs: dict[str, Any]) -> float:
    steps = [sorted(step.values(), reverse=True) for step in logprobs.get("top_logprobs") or () if step]
    return min((best - next_one for best, next_one, *_ in steps), default=0.0)
