"""Clusters and programs that the tests of the simulator share, in round numbers."""

from __future__ import annotations

from fractions import Fraction

from msgspec.structs import replace

from primepar.plan.cluster import Cluster, Link, Rate
from primepar.plan.simulator.run import Simulation, simulate
from primepar.schedule.program import Instruction, Program
from primepar.schedule.signature import Tensor

ITEM = 4
"""Bytes of an element of float32."""
LATENCY, BANDWIDTH = Fraction(3), Fraction(8)
"""Seconds, and bytes per second."""
INSIDE = Link(joins=2, latency=1, bandwidth=16, shared=False)
"""The inner level of two nodes."""
OUTSIDE = Link(joins=4, latency=3, bandwidth=8, shared=True)


def cluster(*links: Link, overlap: bool = True, launch: float = 0, devices: int = 4) -> Cluster:
    """A cluster that does an operation a second, and passes a byte through memory in 1/4."""
    return Cluster(
        name="a small one",
        nodes=1,
        devices_per_node=devices,
        memory=1e9,
        memory_bandwidth=4,
        launch=launch,
        overlap=overlap,
        rates={"float32": Rate(peak=1, achieved=1)},
        links=links or (Link(joins=devices, latency=3, bandwidth=8, shared=False),),
    )


NODES = replace(cluster(INSIDE, OUTSIDE), nodes=2, devices_per_node=2)
"""Two nodes of two devices, which share the link out of their node."""


def program(*programs: list[Instruction], **sizes: int) -> Program:
    """A program whose blocks `x[0]` are of tensors with the given numbers of elements."""
    return Program(
        format="primepar-program",
        version=1,
        ranks=len(programs),
        programs=tuple(map(tuple, programs)),
        tensors={name: Tensor(cuts=((0, size),)) for name, size in sizes.items()},
    )


def exactly(run: Program, on: Cluster) -> Simulation:
    """The run in fractions."""
    return simulate(run, on, "float32", fractions=True)
