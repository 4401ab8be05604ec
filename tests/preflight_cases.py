"""What the tests of preflight capture: scripts as they are, with lines changed, and wrong ones."""

from __future__ import annotations

from importlib.metadata import version

from captured import Case, captured
from command import Done

TWO, FOUR = ("-n", "2"), ("-n", "4")
RANKS = {
    "ring.py": FOUR,
    "mlp.py": TWO,
    "llama.py": TWO,
    "fsdp.py": TWO,
    "pipeline.py": FOUR,
    "gpu.py": TWO,
}
PROVED = {script: Case(script, ranks) for script, ranks in RANKS.items()}
NORM = "norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()"


def swapped(line: str, indent: str = "    ") -> tuple[tuple[str, str]]:
    """A line, moved from before the branch for rank 0 into it."""
    branch = "if mesh.get_rank() == 0:\n"
    return ((f"{indent}{line}\n{indent}{branch}", f"{indent}{branch}{indent}    {line}\n"),)


REFUTED = {
    "ring.py": Case("ring.py", changes=(("rank % 2 == 0", "rank >= 0"),)),
    "mlp.py": Case("mlp.py", TWO, changes=swapped("weight = model[0].weight.full_tensor()")),
    "llama.py": Case("llama.py", TWO, changes=swapped(NORM, indent="")),
    "fsdp.py": Case("fsdp.py", TWO, changes=swapped(NORM)),
    "pipeline.py": Case(
        "pipeline.py", changes=(('["1f1b"]\n', '["1f1b" if rank < 3 else "gpipe"]\n'),)
    ),
}
"""A line swapped with its neighbour, or a condition that every rank meets; in the pipeline the
last stage has another schedule."""


def ring_with(*lines: str) -> tuple[tuple[str, str]]:
    """Lines in the place of the ring's sum."""
    return (("total = mine + theirs\n", "total = mine + theirs\n" + "\n".join(lines) + "\n"),)


SENDING = """        if step < 3:
            outputs.append(layer(batches[step]))
            dist.send(outputs[step].detach(), 1)
"""
RECEIVING = """        if step > 0:
            gradient = torch.empty(4, 8)
            dist.recv(gradient, 1)
            outputs[step - 1].backward(gradient)
"""
OTHER = {
    "hangs": Case("stages.py", (*TWO, "--repair", "fixed.json")),
    "repaired": Case("stages.py", TWO, ((SENDING + RECEIVING, RECEIVING + SENDING),)),
    "raises": Case(
        "ring.py", changes=ring_with("if rank == 2:", "    raise ValueError('no\\nway')")
    ),
    "exits": Case("ring.py", TWO, changes=ring_with("if rank == 1:", "    raise SystemExit(3)")),
    "gpu": Case("ring.py", (*TWO, "--device", "cpu"), ring_with("total = total.cuda()")),
    "endless": Case(
        "ring.py", (*TWO, "--limit", "0.5"), ring_with("while rank == 1:", "    pass")
    ),
    "dies": Case("ring.py", TWO, changes=ring_with("import os", "os._exit(7)")),
    "silent": Case("ring.py", TWO, changes=(("import torch.distributed as dist\n", ""),
                                       ("dist.init_process_group", "exit() or torch.full"))),
    "no file": Case("none.py"),
    "no ranks": Case("ring.py", ()),
    "zero ranks": Case("ring.py", ("-n", "0")),
    "decides": Case("ring.py", TWO, changes=ring_with(
        "dist.all_reduce(total)", "if total.max().item() > 3:", "    dist.barrier()")),
    "decides late": Case("ring.py", changes=(
        ("rank % 2 == 0", "rank >= 0"),
        *ring_with("dist.all_reduce(total)", "if total.max() > 3:", "    dist.barrier()"))),
    "any source": Case("ring.py", ("-n", "2"), changes=(
        ("    dist.recv(theirs, (rank - 1) % ranks)\n    dist.send",
         "    dist.recv(theirs)\n    dist.send"),)),
    "whole numbers": Case("ring.py", changes=ring_with(
        "count = torch.tensor([rank])", "dist.all_reduce(count)",
        "for _ in range(count.item()):", "    dist.barrier()",
        "names = [None] * ranks", "dist.all_gather_object(names, f'rank {rank}')",
        "assert names == [f'rank {place}' for place in range(ranks)]",
        "maximum = torch.tensor(float(rank))", "dist.all_reduce(maximum, dist.ReduceOp.MAX)",
        "if maximum.item() == 3:", "    dist.barrier()")),
    "never comes": Case("ring.py", changes=ring_with(
        "size = torch.zeros(1, dtype=torch.int64)", "if rank == 1:", "    dist.recv(size, 0)",
        "dist.broadcast(total[:size.item()], 1)")),
    "in flight": Case("ring.py", changes=ring_with(
        "work = dist.all_reduce(total, async_op=True)", "total.add_(1)", "work.wait()")),
    "not awaited": Case("ring.py", ("-n", "2"), changes=ring_with(
        "dist.isend(total, 1 - rank)", "dist.recv(mine, 1 - rank)")),
    "batch": Case("ring.py", TWO, changes=ring_with(
        "peers = ((rank + 1) % ranks, (rank - 1) % ranks)",
        "for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, total, peers[0]),",
        "                                    dist.P2POp(dist.irecv, mine, peers[1])]):",
        "    work.wait()")),
    "groups": Case("ring.py", changes=ring_with(
        "one, two = dist.new_group([0, 1, 2, 3]), dist.new_group([0, 1, 2, 3])",
        "for group in (one, two) if rank < 3 else (two, one):",
        "    dist.all_reduce(mine, group=group)")),
    "collectives": Case("ring.py", ("-n", "2"), changes=ring_with(
        "parts = [torch.empty(4) for _ in range(ranks)]",
        "dist.all_gather(parts, total)",
        "dist.reduce_scatter(mine, parts, op=dist.ReduceOp.AVG)",
        "dist.all_to_all(parts, [mine, theirs])",
        "dist.all_to_all_single(torch.empty(4), mine)",
        "dist.gather(mine, parts if rank == 0 else None)",
        "dist.scatter(mine, parts if rank == 0 else None)",
        "dist.reduce(mine, 1)",
        "works = [dist.broadcast(mine, 0, async_op=True), dist.barrier(async_op=True)]",
        "for work in works:", "    work.wait()",
        "objects = [{'lr': 0.1}] if rank == 0 else [None]",
        "dist.broadcast_object_list(objects)",
        "assert objects[0]['lr'] == 0.1")),
}  # fmt: skip
CASES = (*PROVED.values(), *REFUTED.values(), *OTHER.values())
NO_CUDA = (
    "RuntimeError: No CUDA GPUs are available"
    if "+cpu" not in version("torch")
    else "AssertionError: Torch not compiled with CUDA enabled"
)


def answer(case: Case) -> Done:
    """What the command prints for a case."""
    return captured(CASES)[CASES.index(case)]
