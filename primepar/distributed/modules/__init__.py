"""Partitioned torch modules for users' own loops: a linear operator, a model, their parameters."""
