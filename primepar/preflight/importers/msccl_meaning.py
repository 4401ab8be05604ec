"""What the collective of an MSCCL algorithm asks: which inputs each output chunk is the sum of.

Output chunk c of the collective is y[c], and x[g,c] is what GPU g adds to it. An all-reduce and a
reduce-scatter have a summand of every GPU, an all-gather and an all-to-all one of one GPU. Other
collectives are asked nothing about their data.
"""

from __future__ import annotations

from collections.abc import Iterator

from primepar.preflight.importers.msccl_file import Algorithm, Gpu, Location
from primepar.schedule.signature import Signature

PHASE = "summand"
SUMS = frozenset({"allreduce", "reduce_scatter", "reducescatter"})
COPIES = frozenset({"allgather", "alltoall"})


class CollectiveMeaning:
    """The summands that GPUs have at the start, and the sums that they have at the end."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.name = algorithm.collective
        self.gpus = len(algorithm.gpus)
        self.is_known = self.name in SUMS | COPIES
        self.adds = self.name in SUMS
        self._in_place = algorithm.in_place

    def chunks(self, gpu: Gpu) -> int:
        """Chunks of the input of a GPU; some files give the output alone."""
        if gpu.inputs:
            return gpu.inputs
        return gpu.outputs // self.gpus if self.name == "allgather" else gpu.outputs

    def canonical(self, gpu: Gpu, location: Location) -> Location:
        """The one name of a chunk: in place, input and output share memory."""
        buffer, chunk = location
        if not self._in_place or buffer == "s":
            return location
        if self.name == "allgather" and buffer == "i":
            return "o", gpu.number * self.chunks(gpu) + chunk
        if self.name in SUMS and self.name != "allreduce" and buffer == "o":
            return "i", gpu.number * (self.chunks(gpu) // self.gpus) + chunk
        return (buffer if self.name == "allgather" else "i"), chunk

    def inputs(self, gpu: Gpu) -> Iterator[tuple[Location, int, int]]:
        """Yield the chunks of the input, each with its summand: `x[summand, output chunk]`."""
        count = self.chunks(gpu)
        for chunk in range(count) if self.is_known else ():
            number = chunk if self.adds else gpu.number * count + chunk
            summand = gpu.number if self.adds else 0
            yield self.canonical(gpu, ("i", chunk)), summand, number

    def outputs(self, gpu: Gpu) -> Iterator[tuple[Location, int]]:
        """Yield the chunks of the output, each with the number of its sum."""
        count = self.chunks(gpu)
        if self.name == "allreduce":
            numbers = list(range(count))
        elif self.adds:
            part = count // self.gpus
            numbers = list(range(gpu.number * part, (gpu.number + 1) * part))
        elif self.name == "allgather":
            numbers = list(range(self.gpus * count))
        else:
            part = count // self.gpus
            first = gpu.number * part
            numbers = [g * count + first + c for g in range(self.gpus) for c in range(part)]
        for chunk, number in enumerate(numbers if self.is_known else ()):
            yield self.canonical(gpu, ("o", chunk)), number

    def grid(self, gpu: Gpu) -> dict[str, int]:
        """The summands of all outputs."""
        count = self.chunks(gpu)
        return {"G": self.gpus, "C": count} if self.adds else {"G": 1, "C": self.gpus * count}

    @staticmethod
    def signature() -> Signature:
        """What an output chunk is."""
        return Signature(("x[G,C]",), "y[C]")
