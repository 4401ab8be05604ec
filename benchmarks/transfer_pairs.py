"""Programs of one product and one transfer, and how well the number of their chunks is chosen.

Sizes, devices and clusters are drawn at random. Each pair is simulated in every number of chunks
that `primepar.plan.simulator.chunks` compares, and the fastest one is compared with the one that is
chosen there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from primepar.passes import chunk_transfers, overlap
from primepar.passes.chunk_transfers import Transfer, TransferPair
from primepar.plan.cluster import Cluster, Link, Rate
from primepar.plan.simulator.chunks import best_count, counts
from primepar.plan.simulator.run import Simulation, simulate
from primepar.schedule.program import (
    AllGather,
    Alloc,
    AllReduce,
    Compute,
    Cut,
    Free,
    Instruction,
    IRecv,
    ISend,
    Join,
    Program,
    ReduceScatter,
    Wait,
)
from primepar.schedule.signature import Signature, Tensor

DTYPE = "bfloat16"
PHASE = "product.forward"
MOST = 32
"""More chunks than this are not simulated."""
TRANSFERS: tuple[Transfer, ...] = ("all_gather", "all_reduce", "reduce_scatter")


@dataclass(frozen=True)
class PairCase:
    """One product of M x N by N x K on each device, and its transfer, on a cluster."""

    transfer: Transfer
    devices: int
    M: int
    N: int
    K: int
    cluster: Cluster

    def program(self) -> Program:
        """Return the program; `room` gives it a peak of memory that no chunk reaches.

        In a step such a peak is elsewhere, and the pass `overlap` does not raise it.
        """
        ranks = range(self.devices)
        gathers = self.transfer == "all_gather"
        slices = tuple(range(0, self.M + 1, self.M // self.devices))
        wide = tuple(range(0, (self.K if gathers else self.N) * self.devices + 1,
                           self.K if gathers else self.N))  # fmt: skip
        rows, columns, inner = (0, self.M), (0, self.K), (0, self.N)
        if gathers:
            tensors = {
                "a": Tensor((slices, inner)),
                "a.joined": Tensor((rows, inner), "a"),
                "w": Tensor((inner, wide)),
                "y": Tensor((rows, wide)),
            }
        else:
            tensors = {
                "a": Tensor((rows, wide)),
                "w": Tensor((wide, columns)),
                "y": Tensor((slices, columns)),
                "y.joined": Tensor((rows, columns), "y"),
            }
        elements = 2 * self.devices * (self.M * self.N + self.N * self.K + self.M * self.K)
        tensors["room"] = Tensor(((0, elements),))
        reads = ("a.joined[M,N]" if gathers else "a[M,N]", "w[N,K]")
        writes = "y[M,K]" if gathers else "y.joined[M,K]"
        grid = {"M": 1, "N": 1 if gathers else self.devices, "K": self.devices if gathers else 1}
        room = (Alloc("room[0]"), Free("room[0]"))
        nodes = self._gather if gathers else self._reduction
        return Program(
            "primepar-program",
            1,
            self.devices,
            tuple((*room, *nodes(rank)) for rank in ranks),
            grid={PHASE: grid},
            phases={PHASE: Signature(reads, writes, kernel="linear.forward")},
            tensors=tensors,
            initial=tuple(
                (f"a[{rank},0]", f"w[0,{rank}]") if gathers else (f"a[0,{rank}]", f"w[{rank},0]")
                for rank in ranks
            ),
            final=tuple((self._result(rank),) for rank in ranks),
        )

    def _result(self, rank: int) -> str:
        """Return the block that a device ends with."""
        whole = {"all_gather": f"y[0,{rank}]", "all_reduce": "y.joined[0,0]"}
        return whole.get(self.transfer, f"y[{rank},0]")

    def _gather(self, rank: int) -> Iterator[Instruction]:
        group = tuple(range(self.devices))
        parts = tuple(f"a[{member},0]" for member in group)
        if self.devices > 2:
            yield AllGather(group, block=parts[rank], blocks=parts, request="gather")
            yield Wait("gather")
        else:
            yield IRecv(1 - rank, parts[1 - rank], request="in")
            yield ISend(1 - rank, parts[rank], request="out")
            yield from (Wait("in"), Wait("out"))
        yield Join(parts, "a.joined[0,0]", in_place=True)
        slices = {"M": 0, "N": 0, "K": rank}
        yield Compute(("a.joined[0,0]", f"w[0,{rank}]"), f"y[0,{rank}]", PHASE, slices)

    def _reduction(self, rank: int) -> Iterator[Instruction]:
        group = tuple(range(self.devices))
        result = "y.joined[0,0]"
        slices = {"M": 0, "N": rank, "K": 0}
        yield Compute((f"a[0,{rank}]", f"w[{rank},0]"), result, PHASE, slices)
        if self.transfer == "all_reduce":
            yield AllReduce(group, block=result)
            return
        parts = tuple(f"y[{member},0]" for member in group)
        yield Cut(result, parts, in_place=True)
        yield ReduceScatter(group, blocks=parts, block=parts[rank])
        yield from (Free(part) for part in parts if part != parts[rank])

    def pair(self) -> TransferPair:
        """Return the pair as the cost model sees it."""
        pairs: list[TransferPair] = []

        def count(pair: TransferPair) -> int:
            pairs.append(pair)
            return 0

        chunk_transfers(self.program(), count)
        (only,) = pairs
        return only

    def run(self, chunks: int) -> Simulation:
        """Simulate the pair in some chunks."""
        return simulate(overlap(chunk_transfers(self.program(), chunks)), self.cluster, DTYPE)


def generated(count: int, seed: int = 0) -> Iterator[PairCase]:
    """Yield cases, in turn of each transfer: 2, 4 or 8 devices, and sizes from 512 to 8192.

    Launches take 0 to 20 us, latencies 1 to 10 us, links have 10 to 500 GB/s, products 30 to 800
    TFLOP/s, and memory 0.3 to 5 TB/s.
    """
    random = Random(seed)
    for number in range(count):
        devices = random.choice((2, 4, 8))
        yield PairCase(
            TRANSFERS[number % len(TRANSFERS)],
            devices,
            random.choice((1024, 2048, 4096, 8192)),
            random.choice((512, 1024, 2048, 4096)),
            random.choice((512, 1024, 2048, 4096)),
            _cluster(random, devices),
        )


def _cluster(random: Random, devices: int) -> Cluster:
    link = Link(devices, random.choice((1e-6, 5e-6, 1e-5)), 10 ** random.uniform(10, 11.7), False)
    return Cluster(
        name="generated",
        nodes=1,
        devices_per_node=devices,
        memory=1e12,
        memory_bandwidth=10 ** random.uniform(11.5, 12.7),
        launch=random.choice((0.0, 1e-6, 5e-6, 2e-5)),
        overlap=True,
        rates={DTYPE: Rate(1e15, 10 ** random.uniform(13.5, 14.9))},
        links=(link,),
    )


class Choice(NamedTuple):
    """One case: the simulated seconds by number of chunks, and the number that is chosen."""

    case: PairCase
    seconds: dict[int, float]
    chosen: int

    def ratio(self, chunks: int) -> float:
        """Return the simulated seconds over the least ones; a number that is not there is 0."""
        return self.seconds.get(chunks, self.seconds[0]) / min(self.seconds.values())


def chosen(case: PairCase) -> Choice:
    """Simulate a case in every number of chunks."""
    pair = case.pair()
    numbers = [chunks for chunks in counts(pair) if chunks <= MOST]
    seconds = {chunks: float(case.run(chunks).seconds) for chunks in numbers}
    return Choice(case, seconds, min(best_count(pair, case.cluster, DTYPE), MOST))
