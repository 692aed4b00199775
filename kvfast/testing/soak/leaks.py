"""The leak run: many transfers, and resident memory as a series that must not grow.

    python -m kvfast.testing.soak.leaks simulated --handles 10000000 --backend cython
    python -m kvfast.testing.soak.leaks real --handles 200000 --backend cython

``simulated`` puts handles through a transfer table: most end well, some fail, get lost or are refused
their release for a while. ``real`` READs from a rank with NIXL, through a `kvfast.Receiver`.
"""

from __future__ import annotations

import gc
import itertools
import logging
import os
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from kvfast.agent import open_agent
from kvfast.demo.prefill import register
from kvfast.demo.process import LOOPBACK_ENV
from kvfast.demo.rank import Rank
from kvfast.receive import Receiver
from kvfast_ext import backend_name, select_backend, states
from kvfast_ext.contract import Quarantine
from kvfast_ext.simulated import SimulatedAgent

from .rss import rss_mb
from .svg import line_plot

_SAMPLES: Final = 60
_REQUESTS: Final = 256  # of a batch
_HANDLES: Final = 8  # of a request
_BLOCK_BYTES: Final = 4096
_BLOCKS: Final = 64
_GROWN_MB: Final = 2.0
"""What the allocator may take between the second third of a run and the last one."""


def simulated(backend: Any) -> Iterator[int]:
    """Put one batch of handles after the other through a table; yield how many it was."""
    agent = SimulatedAgent(_REQUESTS * _HANDLES)
    # The time between two sweeps is more than a refused release waits for its next try.
    clock = itertools.count(0.0, 60.0).__next__
    table = backend.TransferTable(backend.bind(agent), quarantine=Quarantine(lost_s=30.0), clock=clock)
    ids = np.arange(_REQUESTS * _HANDLES, dtype=np.uint64).reshape(_REQUESTS, _HANDLES)
    dice = np.random.default_rng(0)
    for batch in itertools.count():
        agent.states[:] = states.IN_PROG
        agent.release_codes[:] = 0
        for i, handles in enumerate(ids):
            table.add(f"{batch}/{i}", handles, peer=f"rank{i % 4}")
        backend.pop_done_transfers(table)
        agent.states[:] = states.SUCCESS
        agent.states[dice.integers(0, ids.size, 16)] = states.BACKEND
        agent.states[dice.integers(0, ids.size, 16)] = states.NOT_FOUND
        agent.release_codes[dice.integers(0, ids.size, 16)] = states.BACKEND
        backend.pop_done_transfers(table)
        agent.release_codes[:] = 0
        while len(table) or backend.pop_done_transfers(table).retained:
            backend.pop_done_transfers(table)
        yield ids.size


def real(backend: Any) -> Iterator[int]:
    """READ one block after the other from a rank; yield how many READs there were."""
    os.environ.update(LOOPBACK_ENV)
    with Rank(0, blocks=_BLOCKS, block_bytes=_BLOCK_BYTES) as rank:
        agent: Any = open_agent("decode")
        memory = np.zeros((_BLOCKS, _BLOCK_BYTES), np.uint8)
        register(agent, memory)
        agent.add_remote_agent(rank.metadata)
        receiver = Receiver(agent, backend=backend)

        def prepare(block: int) -> Any:
            local = [(memory.ctypes.data + block * _BLOCK_BYTES, _BLOCK_BYTES, 0)]
            remote = [(rank.address + block * _BLOCK_BYTES, _BLOCK_BYTES, 0)]
            descs = agent.get_xfer_descs
            return agent.initialize_xfer("READ", descs(local, "DRAM"), descs(remote, "DRAM"), rank.name)

        for batch in itertools.count():
            for i in range(0, _BLOCKS, _HANDLES):
                blocks = range(i, i + _HANDLES)
                receiver.track(f"{batch}/{i}", [list(blocks)], peer=rank.name)
                receiver.post_many(f"{batch}/{i}", [lambda b=b: prepare(b) for b in blocks])  # type: ignore[misc]
            while len(receiver):
                results = receiver.poll()
                if results.failed:
                    raise RuntimeError(f"{sorted(results.failed)} failed")
            yield _BLOCKS


def series(batches: Iterator[int], handles: int) -> list[tuple[int, float]]:
    """Run until so many handles have passed; return (handles, resident MB) along the way."""
    sampled: list[tuple[int, float]] = []
    done = 0
    while done < handles:
        done += next(batches)
        if done * _SAMPLES >= len(sampled) * handles:
            gc.collect()
            sampled.append((done, rss_mb()))
            click.echo(f"{done:>12,} handles  {sampled[-1][1]:8.2f} MB")
    return sampled


def growth_mb(sampled: list[tuple[int, float]]) -> float:
    """Return by how much resident memory grew from the second third to the last, by their medians.

    The first third is for caches and pools to fill.
    """
    third = len(sampled) // 3
    values = [mb for _, mb in sampled]
    return statistics.median(values[-third:]) - statistics.median(values[third : 2 * third])


@click.command()
@click.argument("what", type=click.Choice(["simulated", "real"]))
@click.option("--handles", type=click.IntRange(1), default=10_000_000, show_default=True)
@click.option("--backend", type=click.Choice(["auto", "cython", "python"]), default="auto", show_default=True)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write the series as an SVG.")
def main(what: str, handles: int, backend: str, plot: Path | None) -> None:
    """Run many transfers and watch resident memory; exit status 1 if it grew."""
    logging.getLogger("kvfast_ext").setLevel(logging.ERROR)  # each refused release would be a line
    module = select_backend(backend)
    batches = (simulated if what == "simulated" else real)(module)
    sampled = series(batches, handles)
    batches.close()  # type: ignore[attr-defined]
    grown = growth_mb(sampled)
    title = f"{what}, {backend_name(module)}: {sampled[-1][0]:,} handles"
    click.echo(f"{title}, resident memory grew by {grown:.2f} MB from the second third to the last")
    if plot is not None:
        plot.write_text(line_plot(sampled, title, "handles", "resident MB"))
    sys.exit(0 if grown < _GROWN_MB else 1)


if __name__ == "__main__":
    main()
