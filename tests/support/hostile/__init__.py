"""Hostile keys, outages and damaged messages: seeded, against real servers and real processes.

`client.py` has what a client's key and the watcher's can do, `federation.py` an honest federation beside them,
`outages.py` a broker that goes away, `fuzzing.py` damaged messages and files. benchmarks/hostile.py runs each for as
long as one likes.
"""
