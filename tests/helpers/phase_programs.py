"""Right programs with phases of their own, which several tests break in their own ways."""

from __future__ import annotations

from typing import Any

import msgspec

from primepar.schedule import Program

Json = dict[str, Any]


def built(fields: Json) -> Program:
    return msgspec.convert(fields, Program)


def compute(phase: str, reads: list[str], writes: str, **sub_operator: int) -> Json:
    return {
        "op": "compute", "phase": phase, "reads": reads, "accumulates": writes,
        "sub_operator": sub_operator,
    }  # fmt: skip


def program(programs: list[list[Json]], **fields: Any) -> Json:
    head = {"format": "primepar-program", "version": 1, "ranks": len(programs)}
    return {**head, "programs": programs, **fields}


def norm() -> Json:
    """Rows of a norm on two ranks; its gradient is summed over both, and both update a copy.

    The output goes from rows to columns: each rank cuts what it has, and sends the other's piece.
    """
    phases = {
        "norm.squares": {"reads": ["x[M,K]"], "writes": "norm.sum[M]"},
        "norm.forward": {"reads": ["x[M,K]", "norm.sum[M]", "norm.weight[K]"], "writes": "y[M,K]"},
        "norm.gradient": {"reads": ["x[M,K]", "dy[M,K]"], "writes": "norm.weight.grad[K]"},
        "norm.update": {"reads": ["norm.weight[K]", "norm.weight.grad[K]"], "writes": "new[K]"},
    }
    rows = {"cuts": [[0, 4, 8], [0, 6]]}
    tensors = {
        "x": rows, "y": rows, "dy": rows,
        "y.columns": {"of": "y", "cuts": [[0, 8], [0, 3, 6]]},
        "y.pieces": {"of": "y", "cuts": [[0, 4, 8], [0, 3, 6]]},
    }  # fmt: skip
    grid = {name: {"M": 2, "K": 1} for name in phases} | {"norm.update": {"K": 1, "R": 2}}
    final = [
        [f"x[{r},0]", f"dy[{r},0]", f"norm.sum[{r}]", f"y[{r},0]", f"y.columns[0,{r}]",
         f"y.pieces[0,{r}]", f"y.pieces[1,{r}]", "norm.weight.grad[0]", "norm.weight[0]", "new[0]"]
        for r in (0, 1)
    ]  # fmt: skip
    initial = [[f"x[{r},0]", f"dy[{r},0]", "norm.weight[0]"] for r in (0, 1)]
    return program(
        [_norm(r) for r in (0, 1)],
        phases=phases, tensors=tensors, grid=grid, initial=initial, final=final,
    )  # fmt: skip


def _norm(rank: int) -> list[Json]:
    x, y, sums = f"x[{rank},0]", f"y[{rank},0]", f"norm.sum[{rank}]"
    kept, left = f"y.pieces[{rank},{rank}]", f"y.pieces[{rank},{1 - rank}]"
    return [
        compute("norm.squares", [x], sums, M=rank, K=0),
        compute("norm.forward", [x, sums, "norm.weight[0]"], y, M=rank, K=0),
        compute("norm.gradient", [x, f"dy[{rank},0]"], "norm.weight.grad[0]", M=rank, K=0),
        {"op": "all_reduce", "group": [0, 1], "block": "norm.weight.grad[0]"},
        compute("norm.update", ["norm.weight[0]", "norm.weight.grad[0]"], "new[0]", K=0, R=rank),
        {"op": "cut", "block": y, "blocks": sorted([kept, left])},
        {"op": "group", "body": [
            {"op": "send", "peer": 1 - rank, "block": left},
            {"op": "recv", "peer": 1 - rank, "block": f"y.pieces[{1 - rank},{rank}]"},
        ]},
        {"op": "join", "blocks": [f"y.pieces[0,{rank}]", f"y.pieces[1,{rank}]"],
         "block": f"y.columns[0,{rank}]"},
    ]  # fmt: skip


def heads() -> Json:
    """Four uneven heads on two ranks, two of which share a key: divided dims, a max, a fixed slice.

    The gradient of the first key is summed in pieces: cut, reduce-scattered, gathered and joined;
    that of the second is sent under another name and added, and spends some time on the host.
    """
    phases = {
        "scores": {"reads": ["q[H]", "key[H/2,0]"], "writes": "s[H]"},
        "largest": {"reads": ["s[H]"], "writes": "top[0]", "reduction": "max"},
        "softmax": {"reads": ["s[H]", "top[0]"], "writes": "p[H]"},
        "dkey": {"reads": ["p[H]", "q[H]"], "writes": "dkey[H/2]"},
        "smallest": {"reads": ["top[0]"], "writes": "low[0]", "reduction": "min"},
    }
    cuts = {"cuts": [[0, 3, 6, 10, 14]]}
    tensors = {
        "q": cuts, "s": cuts, "p": cuts,
        "key": {"cuts": [[0, 3, 7], [0, 2, 4]]},
        "dkey": {"cuts": [[0, 3, 7]]},
        "dkey.parts": {"of": "dkey", "cuts": [[0, 2, 3, 5, 7]]},
        "top": {"cuts": [[0, 5]]},
    }  # fmt: skip
    grid = {name: {"H": 4} for name in phases} | {"smallest": {"R": 2}}
    initial = [[f"q[{r}]", f"q[{2 + r}]", "key[0,0]", "key[1,0]"] for r in (0, 1)]
    final = [
        [*initial[r], f"s[{r}]", f"s[{2 + r}]", f"p[{r}]", f"p[{2 + r}]", "top[0]", "low[0]",
         "dkey[0]", "dkey.parts[0]", "dkey.parts[1]", *["dkey[1]"] * (r == 0)]
        for r in (0, 1)
    ]  # fmt: skip
    return program(
        [_heads(r) for r in (0, 1)],
        phases=phases, tensors=tensors, grid=grid, initial=initial, final=final,
    )  # fmt: skip


def _heads(rank: int) -> list[Json]:
    mine, parts = (rank, 2 + rank), ["dkey.parts[0]", "dkey.parts[1]"]
    nodes = []
    for h in mine:
        nodes.append(compute("scores", [f"q[{h}]", f"key[{h // 2},0]"], f"s[{h}]", H=h))
        nodes.append(compute("largest", [f"s[{h}]"], "top[0]", H=h))
    nodes.append({"op": "all_reduce", "group": [0, 1], "block": "top[0]", "reduction": "max"})
    for h in mine:
        nodes.append(compute("softmax", [f"s[{h}]", "top[0]"], f"p[{h}]", H=h))
        nodes.append(compute("dkey", [f"p[{h}]", f"q[{h}]"], f"dkey[{h // 2}]", H=h))
    nodes += [
        compute("smallest", ["top[0]"], "low[0]", R=rank),
        {"op": "cut", "block": "dkey[0]", "blocks": parts},
        {"op": "free", "block": "dkey[0]"},
        {"op": "reduce_scatter", "group": [0, 1], "blocks": parts, "block": parts[rank]},
        {"op": "free", "block": parts[1 - rank]},
        {"op": "all_gather", "group": [0, 1], "block": parts[rank], "blocks": parts},
        {"op": "join", "blocks": parts, "block": "dkey[0]"},
    ]
    if rank == 1:
        return [
            *nodes,
            {"op": "isend", "peer": 0, "block": "dkey[1]", "request": "a"},
            {"op": "wait", "request": "a"},
            {"op": "free", "block": "dkey[1]"},
        ]
    return [
        *nodes,
        {"op": "irecv", "peer": 1, "block": "other", "request": "a"},
        {"op": "evict", "block": "dkey[1]"},
        {"op": "wait", "request": "a"},
        {"op": "fetch", "block": "dkey[1]"},
        {"op": "compute", "reads": ["other"], "accumulates": "dkey[1]"},
        {"op": "free", "block": "other"},
    ]


def between() -> Json:
    """A linear operator between two phases of other kinds, without cuts."""
    phases = {
        "norm": {"reads": ["x[M,N]", "gain[N]"], "writes": "I[M,N]"},
        "activation": {"reads": ["O[M,K]"], "writes": "a[M,K]"},
    }
    grid = {
        "norm": {"M": 1, "N": 2}, "forward": {"M": 1, "N": 2, "K": 1},
        "activation": {"M": 1, "K": 1},
    }  # fmt: skip
    initial = [[f"x[0,{r}]", f"gain[{r}]", f"W[{r},0]"] for r in (0, 1)]
    final = [[*initial[r], f"I[0,{r}]", "a[0,0]", *["O[0,0]"] * r] for r in (0, 1)]
    return program(
        [_between(r) for r in (0, 1)],
        phases=phases, grid=grid, shape={"M": 2, "N": 6, "K": 4}, initial=initial, final=final,
    )  # fmt: skip


def _between(rank: int) -> list[Json]:
    activation = compute("activation", ["O[0,0]"], "a[0,0]", M=0, K=0)
    return [
        compute("norm", [f"x[0,{rank}]", f"gain[{rank}]"], f"I[0,{rank}]", M=0, N=rank),
        compute("forward", [f"I[0,{rank}]", f"W[{rank},0]"], "O[0,0]", M=0, N=rank, K=0),
        {"op": "reduce", "group": [0, 1], "block": "O[0,0]", "root": 1},
        activation if rank else {"op": "free", "block": "O[0,0]"},
        {"op": "broadcast", "group": [0, 1], "block": "a[0,0]", "root": 1},
    ]


def sums() -> Json:
    """Three sums over two ranks, of 3, 5 and 3 elements: two in one call, one in a later call."""
    phases = {name: {"reads": ["a[M]"], "writes": f"{name}[0]"} for name in "uvw"}
    phases["y"] = {"reads": ["u[0]", "v[0]", "w[0]"], "writes": "y[0]"}
    sizes = {"u": 3, "v": 5, "w": 3, "y": 1}
    tensors = {"a": {"cuts": [[0, 2, 4]]}} | {name: {"cuts": [[0, n]]} for name, n in sizes.items()}
    grid = {name: {"M": 2} for name in "uvw"} | {"y": {"R": 2}}
    lists = [
        [
            compute("u", [f"a[{rank}]"], "u[0]", M=rank),
            compute("v", [f"a[{rank}]"], "v[0]", M=rank),
            {"op": "all_reduce", "group": [0, 1], "block": "u[0]", "also": ["v[0]"]},
            compute("w", [f"a[{rank}]"], "w[0]", M=rank),
            {"op": "all_reduce", "group": [0, 1], "block": "w[0]"},
            compute("y", ["u[0]", "v[0]", "w[0]"], "y[0]", R=rank),
        ]
        for rank in (0, 1)
    ]
    return program(
        lists, phases=phases, tensors=tensors, grid=grid,
        initial=[[f"a[{rank}]"] for rank in (0, 1)], final=[["y[0]"]] * 2,
    )  # fmt: skip


RIGHT = {"norm": norm, "heads": heads, "between": between, "sums": sums}
