"""A coordinator, its clients, and the rounds they run.

    coordinator/   picks clients, asks them, checks and combines their answers; free of torch
    client/        holds the model, trains, and answers

They import nothing of each other. What both need lies beside them: messages, the protocol, large
messages, fingerprints, costs. Import modules by name.
"""
