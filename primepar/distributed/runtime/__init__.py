"""Runs a program on torch.distributed: the mesh, the compiler of one rank's list, the executor."""
