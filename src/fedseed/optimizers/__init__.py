"""Rules that turn gradients into steps (momentum, Adam, HiSo), and schedules of learning rates."""
