"""Proofs of primitives, for every side."""
