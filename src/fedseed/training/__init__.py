"""What clients run: local training and objectives. Only `settings` may be imported without torch."""
