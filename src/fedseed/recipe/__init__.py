"""Recipes: tables and keys, reading, and the packaged recipes."""
