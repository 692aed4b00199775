"""`kvfast demo`: prefill ranks and a decode, real NIXL between processes, every byte checked.

The supervisor (``run``) owns all processes. Each rank (``prefill``) serves registered memory with a
known pattern. The decode process (``decode``) has the serving loop (``engine``), the fault that is
done to it (``fault``) and what is known independently of the backend under test (``evidence``).
"""
