"""Hostile keys, damaged messages and files: what the tests drive for seconds, and for as long as one likes.

`client.py` has what a client's key and the watcher's can do, `federation.py` an honest federation beside them,
`fuzzing.py` damaged messages and files. FEDSEED_HOSTILE_SECONDS and FEDSEED_FUZZ_SECONDS say how long they go on.
"""
