"""Simulates Byzantine clients: corrupts what they learn from, or what they send in place of an
honest update.
"""
