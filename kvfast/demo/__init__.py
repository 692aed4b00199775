"""`kvfast demo`: prefill ranks and a decode, real NIXL between processes, every byte checked.

The supervisor (``run``) owns all processes. A rank serves its memory (``prefill``), or WRITEs where
decode says (``writer``). The decode process (``decode``) has the serving loop (``engine``, with
``pull`` or ``push``), the fault that is done to it (``fault``) and what is known independently of
what is under test (``evidence``). The verdict is ``judge``'s.
"""
