"""Captures mpi4py scripts: they run unmodified on a stand-in for `mpi4py.MPI`."""
