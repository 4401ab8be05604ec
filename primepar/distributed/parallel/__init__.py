"""Parallelizes a user's own torch module: its linear layers run partitioned, the rest unchanged."""
