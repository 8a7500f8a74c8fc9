"""Audits: attacks on a recipe's own runs, and how far they get."""
