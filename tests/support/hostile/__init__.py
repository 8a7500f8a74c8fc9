"""Hostile messages and damaged files.

FEDSEED_FUZZ_SECONDS says how long `fuzzing.py` goes on, FEDSEED_HOSTILE_ROUNDS how many rounds
`tests/federation/test_hostile.py` has.
"""
