"""Serves programs of one's own: with an optimiser for any torch loop, models out of orbits, and a
server of them.
"""
