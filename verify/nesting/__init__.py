"""Proofs of sequences, for every length of every member."""
