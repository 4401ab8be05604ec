"""Proves the program that is about to be launched, whoever wrote it."""
