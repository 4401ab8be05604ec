"""Runs a script once per rank without communication, and records what each rank would do."""
