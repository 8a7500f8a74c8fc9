"""A client's process: follows the log, trains, and answers plans, questions and asks."""
