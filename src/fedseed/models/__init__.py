"""Models: loading a base, new classifier heads, adapters."""
