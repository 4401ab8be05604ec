"""A program with every instruction that moves data, and what it must leave on 4 devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from linear_cases import mesh_of
from msgspec.structs import replace
from numpy.typing import NDArray

from primepar.distributed import Executor
from primepar.schedule.effects import blocks_named, blocks_renamed
from primepar.schedule.program import (
    AllGather,
    Alloc,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Compute,
    Cut,
    Evict,
    Fetch,
    Free,
    Group,
    Instruction,
    IRecv,
    ISend,
    Join,
    Program,
    Recv,
    Reduce,
    ReduceScatter,
    Send,
    Wait,
)
from primepar.schedule.signature import Signature, Tensor

RANKS = 4
GROUP = (2, 0, 3, 1)
GIVEN = tuple(f"p{i}" for i in range(RANKS))


def initial_blocks(rank: int) -> dict[str, NDArray[np.float64]]:
    """`a` and one `p` for each device, all different."""
    blocks = {"a": np.array([rank + 1.0, 10.0 * rank])}
    return blocks | {f"p{i}": np.array([100.0 * rank + i, -i]) for i in range(RANKS)}


def every_instruction() -> Program:
    """Messages of all kinds in two communicators, all collectives twice, host memory, sums.

    Every block is a tensor of its own, of two elements.
    """
    lists = [_instructions(rank) for rank in range(RANKS)]
    names = dict.fromkeys(
        name for instructions in lists for node in instructions for name in blocks_named(node)
    )
    return Program(
        format="primepar-program",
        version=1,
        ranks=RANKS,
        programs=tuple(tuple(map(_in_tensors, instructions)) for instructions in lists),
        initial=(tuple(f"{name}[0]" for name in ("a", *GIVEN)),) * RANKS,
        tensors={name: Tensor(((0, 2),)) for name in names},
    )


def _in_tensors(node: Any) -> Instruction:
    """The instruction with `a[0]` for `a`."""
    if isinstance(node, Group):
        return replace(node, body=tuple(map(_in_tensors, node.body)))
    changed: Instruction = replace(node, **blocks_renamed(node, "{}[0]".format))
    return changed


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
        *_scaled(rank),
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


def _scaled(rank: int) -> list[Instruction]:
    """Sums and reductions with scales, at once and posted, over all ranks and over one."""
    return [
        Compute(("p2", "p0"), "e", scale="1/4"),
        Compute(("p2", "a"), "e", scale="1/2"),
        *(Compute(("p0",), name) for name in ("f", "i", "j")),
        AllReduce(GROUP, block="f", scale="1/4", request="mean"),
        Reduce(GROUP, block="i", root=3, scale="3"),
        AllReduce((rank,), block="j", scale="1/2"),
        ReduceScatter(GROUP, blocks=GIVEN, block="l", scale="1/2"),
        Wait("mean"),
    ]


def expected_blocks() -> list[dict[str, NDArray[np.float64]]]:
    """What every device has at the end, by the meaning of the instructions."""
    start = [initial_blocks(rank) for rank in range(RANKS)]
    total = sum(blocks["a"] for blocks in start)
    ends = []
    for rank, blocks in enumerate(start):
        place, before, other = GROUP.index(rank), start[rank - 1], start[(rank + 2) % RANKS]
        end = {name: blocks[name] for name in ("p0", "p2", "p3")}
        end |= {f"g{i}": start[member]["a"] for i, member in enumerate(GROUP)}
        end |= {f"t{i}": start[member][f"p{place}"] for i, member in enumerate(GROUP)}
        end["s"] = np.sum([given[f"p{place}"] for given in start], axis=0)
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
        sums = np.sum([given["p0"] for given in start], axis=0)
        end["e"] = (blocks["p2"] + blocks["p0"]) / 4 + (blocks["p2"] + end["a"]) / 2
        end["f"], end["i"] = sums / 4, 3 * sums if rank == 3 else blocks["p0"]
        end["j"], end["l"] = blocks["p0"] / 2, end["s"] / 2
        ends.append(end)
    return ends


def run_program(traced: bool) -> dict[str, Any]:
    """Run it twice on this rank, the second time on the same blocks."""
    mesh = mesh_of("P2x2")
    execute = Executor(mesh, every_instruction())
    start = initial_blocks(mesh.rank).items()
    given = {f"{name}[0]": torch.from_numpy(array).to(mesh.device) for name, array in start}
    before = {name: block.clone() for name, block in given.items()}
    execute(dict(given))
    if traced:
        mesh.start_trace()
    blocks = execute(dict(given))
    return {
        "blocks": {name: block.cpu().numpy().copy() for name, block in blocks.items()},
        "untouched": all(torch.equal(block, before[name]) for name, block in given.items()),
        "sent": sum(elements for _, elements, _ in execute.sent),
        "events": mesh.stop_trace(),
    }


ORIGIN = {"M": 0, "N": 0, "K": 0}
SIGNATURE = Signature(("whole I[M,N]", "W[N,K]"), "whole O[M,K]", kernel="linear.forward")


def rows_together(group: tuple[int, ...]) -> Program:
    """Rows gathered, joined, multiplied at once, cut and scattered over a group."""
    rows = range(RANKS)
    inputs, outputs = ([f"{t}[{m},0]" for m in rows] for t in ("I", "O"))
    members = [group.index(rank) for rank in rows]
    programs: list[tuple[Instruction, ...]] = [
        (
            AllGather(group, block=inputs[member], blocks=tuple(inputs), request="gather"),
            Wait("gather"),
            Join(tuple(inputs), "whole I[0,0]", in_place=True),
            Compute(("whole I[0,0]", "W[0,0]"), "whole O[0,0]", "whole.forward", ORIGIN),
            Free("whole I[0,0]"),
            Cut("whole O[0,0]", tuple(outputs), in_place=True),
            ReduceScatter(group, blocks=tuple(outputs), block=outputs[member]),
            *(Free(name) for name in outputs if name != outputs[member]),
        )
        for member in members
    ]
    cut, whole = Tensor(((0, 2, 4, 6, 8), (0, 2))), Tensor(((0, 8), (0, 2)))
    return Program(
        "primepar-program",
        1,
        RANKS,
        tuple(programs),
        initial=tuple((inputs[member], "W[0,0]") for member in members),
        final=tuple(("W[0,0]", outputs[member]) for member in members),
        grid={"whole.forward": {"M": 1, "N": 1, "K": 1}},
        phases={"whole.forward": SIGNATURE},
        tensors={"I": cut, "O": cut, "W": Tensor(((0, 2), (0, 2))), "whole I": whole,
                 "whole O": whole},
    )  # fmt: skip


def run_rows_together(group: tuple[int, ...]) -> dict[str, Any]:
    """Run it on this rank twice; each rank has a weight of its own."""
    mesh = mesh_of("P2x2")
    execute, row = Executor(mesh, rows_together(group)), group.index(mesh.rank)
    given = torch.full((2, 2), float(row + 1), dtype=torch.float64)
    weight = torch.full((2, 2), float(mesh.rank), dtype=torch.float64)
    for _ in range(2):
        blocks = execute({f"I[{row},0]": given, "W[0,0]": weight})
    total = 2 * (row + 1) * sum(range(RANKS))
    return {
        "equal": bool((blocks[f"O[{row},0]"] == total).all()),
        "names": sorted(blocks),
        "untouched": bool((given == row + 1).all() and (weight == mesh.rank).all()),
        "peak": execute.peak,
    }
