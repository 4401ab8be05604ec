"""Writes down what a verdict rests on, for `primepar.certify` to check."""
