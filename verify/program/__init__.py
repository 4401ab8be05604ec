"""Proofs of programs."""
