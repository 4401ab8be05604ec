"""Preflight: proves the communication of a program that somebody else wrote, before it runs."""
