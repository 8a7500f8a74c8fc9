"""A coordinator, its clients, and the rounds they run.

`coordinator` is free of torch; import modules by name.
"""
