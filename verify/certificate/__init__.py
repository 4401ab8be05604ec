"""Writes certificates of verdicts, which `primepar.certify` checks."""
