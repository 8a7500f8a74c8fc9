"""Output for people: progress, tables, pictures."""
