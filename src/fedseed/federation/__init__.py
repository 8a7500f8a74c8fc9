"""A coordinator, its clients, and the rounds they run.

    coordinator/   picks clients, asks them, checks and combines their answers; imports no torch
    client/        holds the model, trains, and answers

The two do not import each other. Modules that both need are next to them: messages, the protocol,
large messages, fingerprints, costs. Import modules by name.
"""
