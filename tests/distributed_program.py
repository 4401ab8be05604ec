"""A program with every instruction that moves data, and what it must leave on 4 devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from linear_cases import mesh_of
from numpy.typing import NDArray

from primepar.distributed import Executor
from primepar.distributed.storage import Memory
from primepar.schedule.program import (
    AllGather,
    Alloc,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Compute,
    Evict,
    Fetch,
    Free,
    Group,
    Instruction,
    IRecv,
    ISend,
    Program,
    Recv,
    Reduce,
    ReduceScatter,
    Send,
    Wait,
)

RANKS = 4
GROUP = (2, 0, 3, 1)
GIVEN = tuple(f"p{i}" for i in range(RANKS))


def initial_blocks(rank: int) -> dict[str, NDArray[np.float64]]:
    """`a` and one `p` for each device, all different."""
    blocks = {"a": np.array([rank + 1.0, 10.0 * rank])}
    return blocks | {f"p{i}": np.array([100.0 * rank + i, -i]) for i in range(RANKS)}


def every_instruction() -> Program:
    """Messages of all kinds in two communicators, all collectives twice, host memory, sums."""
    return Program(
        format="primepar-program",
        version=1,
        ranks=RANKS,
        programs=tuple(tuple(_instructions(rank)) for rank in range(RANKS)),
        initial=(("a", *GIVEN),) * RANKS,
    )


def _instructions(rank: int) -> list[Instruction]:
    after, before = (rank + 1) % RANKS, (rank - 1) % RANKS
    pair = (rank % 2, rank % 2 + 2)
    sends = rank % 2 == 0
    return [
        AllGather(GROUP, block="a", blocks=("g0", "g1", "g2", "g3")),
        ReduceScatter(GROUP, blocks=GIVEN, block="s"),
        AllToAll(GROUP, blocks=GIVEN, into=("t0", "t1", "t2", "t3")),
        Compute(("a", "p1"), "b"),
        Broadcast(GROUP, block="b", root=1),
        Compute(("a",), "r"),
        Reduce(GROUP, block="r", root=2),
        AllReduce(pair, block="a", reduction="max"),
        Group((Send(after, "p0"), Recv(before, "n"))),
        Send(after, "n") if sends else Recv(before, "q"),
        ISend(after, "p2", 0, "other", request="out"),
        IRecv(before, "h", 0, "other", request="in"),
        *_posted(),
        Alloc("z"),
        Evict("p3"),
        Fetch("p3"),
        Barrier(GROUP),
        Free("p1"),
    ]


def _posted() -> list[Instruction]:
    """Every collective posted, around the waits for the messages and a sum."""
    return [
        *(Compute((given,), name) for given, name in (("p1", "m"), ("p2", "c"), ("p0", "v"))),
        AllGather(GROUP, block="p0", blocks=("k0", "k1", "k2", "k3"), request="gather"),
        AllReduce(GROUP, block="m", reduction="max", request="reduce"),
        Broadcast(GROUP, block="c", root=3, communicator="other", request="broadcast"),
        Compute(("a", "a"), "w"),
        *(Wait(request) for request in ("broadcast", "out", "in", "reduce", "gather")),
        Reduce(GROUP, block="v", root=1, request="sum"),
        ReduceScatter(GROUP, blocks=GIVEN, block="u", request="scatter"),
        AllToAll(GROUP, blocks=GIVEN, into=("x0", "x1", "x2", "x3"), request="all"),
        Barrier(GROUP, request="barrier"),
        *(Wait(request) for request in ("barrier", "all", "scatter", "sum")),
    ]


def expected_blocks() -> list[dict[str, NDArray[np.float64]]]:
    """What every device has at the end, by the meaning of the instructions."""
    start = [initial_blocks(rank) for rank in range(RANKS)]
    total = sum(blocks["a"] for blocks in start)
    ends = []
    for rank, blocks in enumerate(start):
        own, before, other = GROUP.index(rank), start[rank - 1], start[(rank + 2) % RANKS]
        end = {name: blocks[name] for name in ("p0", "p2", "p3")}
        end |= {f"g{i}": start[member]["a"] for i, member in enumerate(GROUP)}
        end |= {f"t{i}": start[member][f"p{own}"] for i, member in enumerate(GROUP)}
        end["s"] = np.sum([given[f"p{own}"] for given in start], axis=0)
        end["b"] = start[1]["a"] + start[1]["p1"]
        end["r"] = np.asarray(total) if rank == 2 else blocks["a"]
        end["a"] = np.maximum(blocks["a"], other["a"])
        end["n"], end["h"] = before["p0"], before["p2"]
        if rank % 2:
            end["q"] = start[rank - 2]["p0"]
        end["z"] = np.zeros(2)
        end |= {f"k{i}": start[member]["p0"] for i, member in enumerate(GROUP)}
        end |= {f"x{i}": end[f"t{i}"] for i in range(RANKS)}
        end["m"] = np.max([given["p1"] for given in start], axis=0)
        end["c"], end["w"], end["u"] = start[3]["p2"], 2 * end["a"], end["s"]
        end["v"] = np.sum([given["p0"] for given in start], axis=0) if rank == 1 else blocks["p0"]
        ends.append(end)
    return ends


def run_program(traced: bool) -> dict[str, Any]:
    """Run it twice on this rank, `a` being borrowed."""
    mesh = mesh_of("P2x2")
    execute = Executor(mesh, every_instruction(), Memory(mesh.pool, lambda _: (2,), {"a"}))
    if traced:
        mesh.start_trace()
    start = initial_blocks(mesh.rank).items()
    given = {name: torch.from_numpy(array).to(mesh.device) for name, array in start}
    borrowed = given["a"].clone()
    blocks = execute(dict(given))
    return {
        "blocks": {name: block.cpu().numpy().copy() for name, block in blocks.items()},
        "untouched": torch.equal(given["a"], borrowed),
        "sent": execute.elements,
        "events": mesh.stop_trace(),
    }


def run_out_of_order() -> dict[str, Any]:
    """Rows gathered, multiplied at once and scattered over a group in another order than ranks."""
    mesh = mesh_of("P2x2")
    row = GROUP.index(mesh.rank)
    inputs, outputs = (tuple(f"{t}[{m},0]" for m in range(RANKS)) for t in ("I", "O"))
    instructions: list[Instruction] = [
        AllGather(GROUP, block=inputs[row], blocks=inputs, request="gather"),
        Wait("gather"),
        *(
            Compute((inputs[m], "W[0,0]"), outputs[m], "forward", {"M": m, "N": 0, "K": 0})
            for m in range(RANKS)
        ),
        ReduceScatter(GROUP, blocks=outputs, block=outputs[row]),
        *(Free(name) for name in (*inputs, *outputs) if name not in (inputs[row], outputs[row])),
    ]
    program = Program(
        "primepar-program",
        1,
        RANKS,
        tuple(tuple(instructions) if rank == mesh.rank else () for rank in range(RANKS)),
        initial=((inputs[row], "W[0,0]"),) * RANKS,
    )
    mesh.ensure_groups([("world", GROUP)])
    memory = Memory(mesh.pool, lambda _: (2, 2), [inputs[row], "W[0,0]"], [outputs[row]])
    given = torch.full((2, 2), float(row + 1), dtype=torch.float64)
    weight = torch.full((2, 2), float(mesh.rank), dtype=torch.float64)
    blocks = Executor(mesh, program, memory)({inputs[row]: given, "W[0,0]": weight})
    total = 2 * (row + 1) * sum(range(RANKS))
    return {"equal": bool((blocks[outputs[row]] == total).all()), "names": sorted(blocks)}
