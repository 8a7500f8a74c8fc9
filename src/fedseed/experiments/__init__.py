"""Sweeps of runs laid side by side, and what a recipe costs before it is run."""
