"""Measures products and transfers on this machine for a cluster file."""
