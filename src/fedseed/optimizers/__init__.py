"""Turns gradients into steps (momentum, Adam, HiSo), and lets learning rates change by
schedules.
"""
