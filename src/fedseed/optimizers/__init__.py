"""What becomes of a gradient: momentum and Adam, once, for every method."""
