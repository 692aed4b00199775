"""Where kvfast's floors are. What a floor is, and how it is judged, is `kvfast.benchgate`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FLOORS: Final = Path(__file__).with_name("gates.toml")
