"""Runs vLLM's command line on a machine with few cores and no accelerator.

What is changed here holds for a server's other processes too: they are forked from this one. Nothing of it
touches what is sent, when a transfer has ended, or whose a block is; but times measured under it are not
vLLM's own.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import Any, Final

_PROGRESS_US: Final = 1000


def spare_the_cores() -> None:
    """Have nobody spin for a core, or insist on one, that others need to get on."""
    # vLLM's queue between an engine and its workers spins on this: whoever should fill it is starved.
    os.sched_yield = _pause
    # On a CPU, vLLM's NIXL workers move to the last core of each NUMA node, with all threads that they start
    # later. With two cores, the workers of both servers would share one of them.
    os.sched_setaffinity = _stay
    # And vLLM insists on "spawn" there: a server would import everything three times.
    multiprocessing.get_context = _forking(multiprocessing.get_context)
    _have_nixl_sleep()


def _pause() -> None:
    time.sleep(0.0002)


def _stay(pid: int, cores: object) -> None:
    pass


def _forking(get_context: Any) -> Any:
    def forking(method: str | None = None) -> object:
        return get_context("fork" if method == "spawn" else method)

    return forking


def _have_nixl_sleep() -> None:
    """Have NIXL's progress threads sleep until something comes, for a millisecond at the most.

    NIXL's Python interface gives them no time to sleep: each worker has a thread that always runs.
    """
    from nixl._api import nixlBind

    delay = nixlBind.nixlAgentConfig.pthrDelay

    def set_delay(config: Any, delay_us: int) -> None:
        delay.__set__(config, max(delay_us, _PROGRESS_US))

    nixlBind.nixlAgentConfig.pthrDelay = property(delay.__get__, set_delay)


if __name__ == "__main__":
    spare_the_cores()
    from vllm.entrypoints.cli.main import main

    main()
