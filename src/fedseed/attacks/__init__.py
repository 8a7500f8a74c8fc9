"""Byzantine clients, in simulation: what they learn from, and what they send in place of an honest update."""
