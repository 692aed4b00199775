"""``python -m kvfast``: the command line."""

from __future__ import annotations

from kvfast.cli import main

if __name__ == "__main__":
    main(prog_name="kvfast")
