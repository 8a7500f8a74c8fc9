"""fedseed in a program of one's own: an optimiser for any torch loop, and models out of orbits."""
