"""Losses and measurements for training and evaluation, for each kind of example."""
