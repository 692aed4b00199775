"""What was measured and compared, a line for each run: printed at the end, for docs/vllm-engine.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

_HEAD: Final = ("pair", "run", "requests", "tokens compared", "wrong", "failed", "seconds", "note")


@dataclass(slots=True)
class Run:
    """One run's figures."""

    pair: str
    name: str
    requests: int = 0
    tokens: int = 0
    wrong: int = 0
    failed: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def row(self) -> str:
        """Return a row of a Markdown table."""
        numbers = (self.requests, self.tokens, self.wrong, self.failed, f"{self.seconds:.1f}")
        cells = [self.pair, self.name, *map(str, numbers), "; ".join(self.notes)]
        return f"| {' | '.join(cells)} |"


class Figures:
    """All runs of a session."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def run(self, pair: str, name: str) -> Run:
        """Begin a run."""
        self.runs.append(Run(pair, name))
        return self.runs[-1]

    def table(self) -> list[str]:
        """Return the lines of a Markdown table, with a line for all."""
        total = Run("all", "")
        for run in self.runs:
            for name in ("requests", "tokens", "wrong", "failed", "seconds"):
                setattr(total, name, getattr(total, name) + getattr(run, name))
        rows = [run.row() for run in (*self.runs, total)]
        return [f"| {' | '.join(_HEAD)} |", "|---" * len(_HEAD) + "|", *rows]
