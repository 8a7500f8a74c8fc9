"""Interfaces for a user's own programs: an optimiser for any torch loop, models from orbits, and a
server for them.
"""
