"""What the instructions of a program take on a device: memory, bytes sent, operations and seconds.

This is the one stream that is counted. The sum of what is sent is the traffic of a rank, the
maximum of what is live its memory. A block is live from the instruction that makes it, or the post
of its receive, to the one that frees it. Example, of a rank that starts with x and w, 4 bytes each:

    isend    x -> 1              sent 4   live 8
    compute  y += x * w          sent 0   live 12
    free     x                   sent 0   live 8

A product is a sub-operator whose dims are each in two of its three blocks; it counts two operations
per multiplication. Any other phase costs its bytes alone, unless its operations are given. Every
block that an instruction names passes once through the memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from math import isqrt, prod
from types import MappingProxyType
from typing import Any

from primepar.errors import ProgramError
from primepar.plan.cluster import Cluster, Passing
from primepar.plan.kernels import NO_ATTENTION, Attention, BlockBytes
from primepar.schedule.effects import effects
from primepar.schedule.ledger import peak, sends
from primepar.schedule.program import (
    Collective,
    Compute,
    Cut,
    Evict,
    Fetch,
    Instruction,
    Join,
    Program,
)
from primepar.schedule.signature import Signature, multiplies

Size = Callable[[str], int]
"""Bytes of a block."""


def sent(node: Instruction, rank: int, size: Size) -> Fraction | int:
    """Bytes that leave a rank for an instruction, as the ledger of all programs counts them."""
    return sum(times * size(block) for block, times in sends(node, rank))


Scalar = Any
"""A float, or a fraction where the run is exact."""


def computes(node: Instruction) -> bool:
    """Whether an instruction keeps its device busy; a cut or join in place copies nothing."""
    return isinstance(node, Compute | Cut | Join) and not getattr(node, "in_place", False)


class Work:
    """Costs of the instructions of one program in one data type on a cluster's devices."""

    def __init__(
        self,
        program: Program,
        cluster: Cluster,
        dtype: str,
        number: Callable[[Any], Scalar],
        attention: Attention = NO_ATTENTION,
        passing: Mapping[str, Passing] = MappingProxyType({}),
    ) -> None:
        self.program, self.bytes = program, BlockBytes(program, dtype)
        self._operations, positions = attention.operations, attention.positions
        self._products: dict[str, bool] = {}
        rate = cluster.rate(dtype)
        self._product = rate.product(number)
        self._attending = self._product if positions is None else rate.attending(positions, number)
        self._passing = {
            phase: (number(numbers.launch), number(numbers.memory_bandwidth))
            for phase, numbers in passing.items()
        }
        self._scores = {
            phase: number(numbers.scores) * attention.of_score
            for phase, numbers in passing.items() if numbers.scores is not None
        }  # fmt: skip
        self._host = None if cluster.host_bandwidth is None else number(cluster.host_bandwidth)
        self._others = number(cluster.launch), number(cluster.memory_bandwidth)
        self._number = number

    def operations(self, node: Compute | Cut | Join) -> int:
        """Operations of an instruction: of a product, or as given; else 0."""
        if not isinstance(node, Compute) or node.phase is None:
            return 0
        per_element = self._operations.get(node.phase)
        if per_element is not None:
            return round(per_element * self.bytes.elements(node.accumulates))
        if not self._is_product(node.phase):
            return 0
        # Blocks of M x N, N x K and M x K: their product is (M N K)^2, as each dim is in two.
        return 2 * isqrt(prod(map(self.bytes.elements, (*node.reads, node.accumulates))))

    def _is_product(self, phase: str) -> bool:
        if phase not in self._products:
            signature = (self.program.phases or {}).get(phase)
            self._products[phase] = signature is None or _is_product(signature)
        return self._products[phase]

    def touched(self, node: Compute | Cut | Join) -> int:
        """Bytes of all blocks that an instruction names."""
        names = (
            (*node.reads, node.accumulates) if isinstance(node, Compute)
            else (*node.blocks, node.block)
        )  # fmt: skip
        return sum(map(self.bytes, names))

    def seconds(self, node: Compute | Cut | Join | Fetch | Evict) -> Scalar:
        """Seconds of a computation: its launch and its bytes, with its operations.

        A copy from or to the host takes its bytes over the bandwidth of the host's link.
        """
        if isinstance(node, Fetch | Evict):
            assert self._host is not None, "refused before"
            return self._number(self.bytes(node.block)) / self._host
        phase = getattr(node, "phase", "join") or ""
        launch, memory = self._passing.get(phase, self._others)
        passing = launch + self._number(self.touched(node)) / memory
        operations = self._number(self.operations(node))
        if phase in self._scores:
            passing += operations / self._scores[phase]
        times = self._attending if phase in self._operations else self._product
        return times.seconds(operations, passing)

    def peak(self, rank: int) -> int:
        """Peak of live bytes on a rank, buffers of posted receives included."""
        return peak(self.program, rank, self.bytes)


def _is_product(signature: Signature) -> bool:
    """Whether a phase is a product: by its kernel, or else if each dim is in two of its blocks."""
    if signature.kernel is not None:
        return multiplies(signature.kernel)
    dims = Counter(dim for template in signature.templates for dim in template.dims)
    return len(signature.reads) == 2 and set(dims.values()) <= {2}


def refuse_host_transfers(program: Program, cluster: Cluster) -> None:
    """Raise `ProgramError` for a transfer to or from a host, if the cluster has no link to it."""
    if cluster.host_bandwidth is not None:
        return
    for rank, instructions in enumerate(program.programs):
        for place, node in enumerate(instructions):
            if isinstance(node, Fetch | Evict):
                raise ProgramError(
                    f"programs[{rank}][{place}]: expected no transfer to or from a host, as "
                    f"cluster {cluster.name} has no host_bandwidth, got "
                    f"{type(node).__name__.lower()} {node.block}: leave it out, or write "
                    "host_bandwidth = 2.5e10 in the cluster's file"
                )


def label(node: Instruction, rank: int) -> str:
    """The blocks that a transfer receives, or else those that it sends."""
    if isinstance(node, Collective):
        return " ".join(effects(node, rank).writes or effects(node, rank).reads)
    return str(getattr(node, "block", ""))
