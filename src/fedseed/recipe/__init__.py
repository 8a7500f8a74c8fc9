"""Recipes: their tables and keys, how they are read, and those that come along."""
