"""How many CPU seconds do five shapes of programs take, each the hard one of a part of the judge?

| program | what is hard |
|---|---|
| FLUX, 8 devices, 16 chunks | many terms in many sums, each in pieces |
| 1,200 posted receives | each is in flight together with all others: races |
| a sum of 4,000 products | one block with 4,000 terms |
| a ring of 1,000 ranks | a wait graph as deep as it is large |
| Cannon, 64 x 64 x 64 | half a million instructions, each message in a group, on 4,096 ranks |

`--small` leaves out the last one, which takes most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from time import process_time
from typing import Annotated

from benchmarks.bench import BenchRow, Case, Column, bench
from benchmarks.programs import cannon
from primepar.partition.flux import FluxScatter
from primepar.schedule import Program
from primepar.schedule.program import Compute, Free, Instruction, IRecv, ISend, Recv, Send, Wait
from primepar.verify import verify_program

RECEIVES, TERMS, RING = 1200, 4000, 1000


def flux() -> Program:
    """Sums travel in chunks, and each is added to products of all devices."""
    return FluxScatter(devices=8, chunks=16, M=256, K=64).program()


def receives() -> Program:
    """All messages of one rank to another are posted at once, and awaited afterwards."""
    numbers = range(RECEIVES)
    posts = [ISend(1, f"x{k}", request=f"r{k}") for k in numbers]
    awaits: list[Instruction] = [Wait(f"r{k}") for k in numbers]
    got = [IRecv(0, f"x{k}", request=f"r{k}") for k in numbers]
    initial = tuple(f"x{k}" for k in numbers)
    return Program("primepar-program", 1, 2, ((*posts, *awaits), (*got, *awaits)),
                   initial=(initial, ()), final=((), initial))  # fmt: skip


def one_sum() -> Program:
    """One output block, the sum over all slices of N; each operand is freed after its product."""
    nodes: list[Instruction] = []
    for n in range(TERMS):
        i, w = f"I[0,{n}]", f"W[{n},0]"
        nodes += [Compute((i, w), "O[0,0]", "forward", {"M": 0, "N": n, "K": 0}), Free(i), Free(w)]
    initial = tuple(name for n in range(TERMS) for name in (f"I[0,{n}]", f"W[{n},0]"))
    grid = {"forward": {"M": 1, "N": TERMS, "K": 1}}
    return Program("primepar-program", 1, 1, (tuple(nodes),), grid=grid, initial=(initial,))


def ring() -> Program:
    """Rank 0 sends first, all others receive first: no rank goes on before the one before it."""
    ranks = range(RING)
    lists = []
    for rank in ranks:
        send, receive = Send((rank + 1) % RING, "x"), Recv((rank - 1) % RING, "y")
        lists.append((send, receive) if rank == 0 else (receive, send))
    return Program("primepar-program", 1, RING, tuple(lists), initial=(("x",),) * RING)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "FLUX, 8 devices, 16 chunks": flux,
    f"{RECEIVES:,} posted receives": receives,
    f"a sum of {TERMS:,} products": one_sum,
    f"a ring of {RING:,} ranks": ring,
    "Cannon, 64 x 64 x 64": lambda: cannon(64),
}


class JudgeRow(BenchRow, frozen=True):
    """A program, what it is judged, and CPU seconds."""

    timed = ("seconds",)
    program: Annotated[str, Column("program")]
    instructions: Annotated[int, Column("instructions", ",")]
    verdict: Annotated[str, Column("verdict")]
    seconds: Annotated[float, Column("CPU s", ".2f")]


def measure(name: str) -> JudgeRow:
    """Prove a program; making it does not count."""
    program = PROGRAMS[name]()
    start = process_time()
    verdict = verify_program(program, name, timeout=1e6).verdict
    return JudgeRow(name, sum(map(len, program.programs)), verdict, process_time() - start)


def judge(small: bool = False) -> Iterator[Case]:
    for name in list(PROGRAMS)[: -1 if small else None]:
        yield name, partial(measure, name)


if __name__ == "__main__":
    bench(judge, rounds=1)
