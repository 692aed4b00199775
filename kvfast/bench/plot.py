"""The picture of a run: sweep time against handles in flight, and what a drain costs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Final

from .errors import BenchError
from .result import BenchResult, Seconds
from .subjects import ALL, LIMIT, LIMIT_WATCH, LOOP, PYTHON, SUBJECTS, WATCH

SUFFIXES: Final = (".png", ".svg")
_COLOURS: Final = {
    LOOP: "#c0392b",
    PYTHON: "#8e6fb0",
    ALL: "#1f77b4",
    WATCH: "#1b9e5a",
    LIMIT: "#777777",
    LIMIT_WATCH: "#aaaaaa",
}
_LABELS: Final = {
    LIMIT: "a bare C++ loop that asks about every transfer",
    LIMIT_WATCH: "a bare C++ loop that asks about one a request",
}
_TITLES: Final = {"real": "real NIXL, UCX over TCP", "simulated": "simulated transfers"}


def check_plot(path: Path) -> None:
    """Raise BenchError if no plot can be made there: before anything is measured.

    Raises
    ------
    BenchError
        If the suffix is not known, the folder is not there, or matplotlib is not installed.
    """
    if path.suffix not in SUFFIXES:
        raise BenchError(f"--plot makes {' or '.join(SUFFIXES)}, not {path}")
    if not path.absolute().parent.is_dir():
        raise BenchError(f"--plot {path}: there is no folder {path.absolute().parent}")
    if importlib.util.find_spec("matplotlib") is None:
        raise BenchError('--plot needs matplotlib, which is not installed: pip install "kvfast[bench]"')


def plot(result: BenchResult, path: Path) -> None:
    """Write the picture."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    places = [*reversed(result.in_flight)]  # real transfers first
    figure: Any = Figure(figsize=(6.4 * len(places), 9.6), layout="constrained")
    axes = figure.subplots(2, len(places), squeeze=False)
    for column, where in enumerate(places):
        _draw_in_flight(axes[0][column], result.in_flight[where], _TITLES[where])
        _draw_drain(axes[1][column], result.drain[where], _TITLES[where])
    figure.suptitle(f"kvfast, {result.date}\n{result.machine}", fontsize=9)
    # Text as text, and nothing in the file that changes by itself.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "kvfast"}):
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_in_flight(axes: Any, sizes: dict[int, Seconds], title: str) -> None:
    for subject in SUBJECTS:
        points = [(n, times[subject] * 1e6) for n, times in sizes.items() if subject in times]
        if points:
            style = "--" if subject in (LIMIT, LIMIT_WATCH) else "-"
            label = _LABELS.get(subject, subject)
            axes.plot(*zip(*points), style, marker="o", ms=4, color=_COLOURS[subject], label=label)
    axes.set(xscale="log", yscale="log", title=f"a sweep while nothing ends: {title}")
    axes.set(xlabel="transfers in flight, four a request", ylabel="microseconds")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend()


def _draw_drain(axes: Any, sizes: dict[int, Seconds], title: str) -> None:
    ((handles, times),) = sizes.items()
    names = [name for name in SUBJECTS if name in times]
    bars = axes.barh(names, [times[name] * 1e6 for name in names], color=[_COLOURS[name] for name in names])
    axes.bar_label(bars, fmt="%.0f us", padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set(title=f"a sweep in which {handles:,} end: {title}", xlabel="microseconds")
