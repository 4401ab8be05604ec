"""Runs programs state by state, without Z3: an independent check of the proofs."""
