"""Emulated devices: run every instruction of a program, each rank with a memory of its own."""
