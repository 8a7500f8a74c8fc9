"""Data: instruction families, prompts, and what each client of a federation holds. Free of torch."""
