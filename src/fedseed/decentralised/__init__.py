"""Tuning without a coordinator: nodes that write logs of their own, and flood them.

FedKSeed, Appendix J.2, expects decentralised tuning from messages of seeds and scalars; SeedFlood
(arXiv 2602.18181) floods them through a graph. Here each node appends its steps to its own log and
passes new entries on to its neighbours. Steps are ordered by (step number, node), and the weights
are a function of the set of steps alone: all nodes that have the same set have the same bits.

Two designs were sketched.

1. Each step is a change of its own, w <- w - (eta / m) rho z, applied in the order (step, node),
   with m fixed beforehand. A step never changes once it is known. But it needs a pass over the
   weights and a rounding for each node, m must be known, absent nodes make every step smaller, and
   a vote has no majority.
2. All steps of one number are a round, and the round is combined by the method as a coordinator
   combines answers: in the order of nodes, by the mean over the nodes that are present, or by the
   majority. A late step changes its round, which is undone and replayed.

The second design is built. It needs no arithmetic of its own: `federation.coordinator.Coordinator`
is a function of a round's updates, which every node runs for itself. So a mesh that loses nothing
ends with the digest of `fedseed run`, every method whose rounds are functions of their updates
works, and the result is an ordinary orbit, which all commands for orbits read. The cost: a step
that arrives late changes the weights of its whole round, because a mean over more nodes divides by
more.

A step is made at the weights after all steps of lower numbers that its node knows. If the other
side of a partition has made further ones, the step is still applied at its place in the order. Its
estimate belongs to other weights then, as in any method with delays.

    entry         a step as it stands in a log: chained to the one before, checked or signed
    logfile       a log on disk: a node's own entries are on disk before they are sent
    history       all logs that a node knows, and proofs of two different steps with one number
    messages      the messages between neighbours
    model         the weights: combines rounds, undoes and replays, keeps checkpoints
    pace          when a node makes its next step, and which nodes it waits for
    node          one node without a network: bytes in, bytes out
    process       a node on a transport
    simulation    many nodes in one process, with delays, losses and partitions
    fitting       settings that can't work, with the reasons
"""
