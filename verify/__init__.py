"""Z3: proofs of primitives for every side, proofs of programs, and counterexamples."""
