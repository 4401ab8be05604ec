"""Proofs of sequences of primitives, for every length of every member."""
