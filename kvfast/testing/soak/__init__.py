"""The soak: real NIXL processes, every fault there is, and a canary in every block that is used again.

The supervisor (``run``) owns all processes. Decode (``decode``, ``pull``) has few blocks, gives them
back the moment a policy (``policies``) says so, and has every byte checked (``memory``). The ranks
(``prefill``) keep their promises with a `kvfast.Sender`. What goes wrong, and when, is decided by
a seed (``plan``) and done by ``events`` and ``agents``.
"""

from __future__ import annotations
