"""Lines for the log that are written when the state that they tell of is in order.

Writing a line can raise: a filter may, and a slow terminal is where Ctrl-C strikes. In the middle of a
change of state that would lose the rest of it, so lines wait until it is over. Also a slow log then
holds up nobody under a lock.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any, Final


class LogLater:
    """Lines in order, until `write`. Any thread may add, and any may write; each line is written once."""

    def __init__(self) -> None:
        self.waiting: Final[deque[tuple[logging.Logger, int, str, tuple[Any, ...]]]] = deque()

    def add(self, logger: logging.Logger, level: int, text: str, *values: Any) -> None:
        """Keep a line, as ``logger.log`` takes it, for later."""
        self.waiting.append((logger, level, text, values))

    def write(self) -> None:
        """Write all lines. If one raises, it is gone, and those behind it wait for the next call."""
        while self.waiting:
            try:
                logger, level, text, values = self.waiting.popleft()
            except IndexError:
                return  # another thread was quicker
            logger.log(level, text, *values)
