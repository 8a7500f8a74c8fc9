"""Interfaces for a user's own programs: an optimiser for any torch loop, models out of orbits and a
server of them.
"""
