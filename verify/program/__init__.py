"""Proofs of programs, as they stand."""
