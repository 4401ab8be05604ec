"""A master hands out tasks, each to the worker whose result comes first."""

import sys

from mpi4py import MPI

comm = MPI.COMM_WORLD
tasks = int(sys.argv[1]) if len(sys.argv) > 1 else 3
if comm.rank == 0:
    results, status = {}, MPI.Status()
    left = list(range(tasks))
    for worker in range(1, comm.size):
        comm.send(left.pop() if left else None, dest=worker)
    while len(results) < tasks:
        task, result = comm.recv(source=MPI.ANY_SOURCE, status=status)
        results[task] = result
        comm.send(left.pop() if left else None, dest=status.Get_source())
    assert results == {task: task * task for task in range(tasks)}
else:
    while (task := comm.recv(source=0)) is not None:
        comm.send((task, task * task), dest=0)
