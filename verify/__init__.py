"""Z3: proofs of primitives for every side, proofs of programs, and counterexamples."""

from primepar.verify.primitive_proof import verify_primitive
from primepar.verify.primitive_side import verify_side
from primepar.verify.program_proof import verify_program
from primepar.verify.report import PropertyResult, Report

__all__ = ["PropertyResult", "Report", "verify_primitive", "verify_program", "verify_side"]
