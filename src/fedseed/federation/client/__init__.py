"""A client's process: follows the log, trains, and answers plans, questions, and the asks of secure
sums.
"""
