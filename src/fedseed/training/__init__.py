"""Does what a client does in a round. Only `settings` may be imported without torch."""
