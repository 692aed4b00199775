"""Write docs/request-states.md from the table: ``python -m tests.orchestration.state_docs``."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Final

from kvfast import request_states
from kvfast.request_states import ENDS, TABLE, Event, State

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "request-states.md"

_HEAD: Final = """\
# The states of a request

<!-- Made from kvfast/request_states.py by `python -m tests.orchestration.state_docs`; a test compares. -->

"""


def rendered() -> str:
    """Return the document's text."""
    prose = inspect.getdoc(request_states) or ""
    return _HEAD + _markdown(prose) + "\n\n## The table\n\n" + _table() + "\n## The diagram\n\n" + _diagram()


def _markdown(prose: str) -> str:
    _, _, text = prose.partition("\n\n")  # the first line is the module's, the heading stands for it
    text = re.sub(r"^(``.+``)\n((?:    .*\n)+)", _bullet, text + "\n", flags=re.MULTILINE).strip()
    return text.replace("``", "`").replace("`step`", "`kvfast.request_states.step`")


def _bullet(term: re.Match[str]) -> str:
    return f"- {term[1]}: {' '.join(term[2].split())}\n"


def _table() -> str:
    head = ["state", *(event.name for event in Event), "may post", "notifies at its end"]
    rows = [_row(state) for state in State if state not in ENDS]
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def _row(state: State) -> list[str]:
    rule = TABLE[state]
    following = [_arrow(state, rule.next.get(event)) for event in Event]
    return [f"**{state.name}**", *following, "yes" if rule.posts else "no", "yes" if rule.notifies else "no"]


def _arrow(state: State, following: State | None) -> str:
    if following is None:
        return "can't happen"
    return "stays" if following is state else following.name


def _diagram() -> str:
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {State.TRACKED.name}: track"]
    for state, rule in TABLE.items():
        arrows: dict[State, list[str]] = {}
        for event, following in rule.next.items():
            if following is not state:
                arrows.setdefault(following, []).append(event.name)
        lines += [f"    {state.name} --> {to.name}: {', '.join(events)}" for to, events in arrows.items()]
    lines += [f"    {state.name} --> [*]" for state in State if state in ENDS]
    return "\n".join([*lines, "```"]) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(rendered())
