"""The coordinator: admits clients, runs rounds, and writes the log. It does not import torch."""
