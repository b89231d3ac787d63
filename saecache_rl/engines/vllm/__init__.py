"""Our eviction policies inside a live vLLM V1 engine (0.32): block pool, sessions, labels, hints, plug-in.

Importing anything here needs no vLLM but `block_pool`, `manager` and `scheduler`, which say so in one line.
"""
