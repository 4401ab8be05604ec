"""Discrete-event simulation of programs on a cluster."""
