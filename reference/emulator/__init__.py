"""Emulated devices: every instruction of a program, on memories that share nothing."""
