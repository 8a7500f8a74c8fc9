"""Losses for training and metrics for evaluation, for each kind of example."""
