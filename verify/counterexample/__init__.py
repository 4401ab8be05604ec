"""Counterexamples as data, and the smallest program that has one."""
