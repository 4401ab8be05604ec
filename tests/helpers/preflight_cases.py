"""What the tests of preflight capture: scripts as they are, with lines changed, and wrong ones."""

from __future__ import annotations

from importlib.metadata import version
from textwrap import indent

from captured import Case

DDP, BY_HAND = "ddp.py", "by_hand.py"
TWO, FOUR = ("-n", "2"), ("-n", "4")
RANKS = {
    "ring.py": FOUR,
    "mlp.py": TWO,
    "fsdp.py": TWO,
    "pipeline.py": FOUR,
    "gpu.py": TWO,
    "packages.py": TWO,
}
PROVED = {script: Case(script, ranks) for script, ranks in RANKS.items()}
REFUTED = {"ring.py": Case("ring.py", changes=(("rank % 2 == 0", "rank >= 0"),))}
"""A condition that every rank meets."""


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
        "ring.py", (*TWO, "--limit", "4"), ring_with(
            "while rank == 1:", "    __import__('time').sleep(9)")
    ),
    "dies": Case("ring.py", TWO, changes=ring_with(
        "import faulthandler, os, signal", "faulthandler.disable()", "if rank == 1:",
        "    os.kill(os.getpid(), signal.SIGSEGV)")),
    "no start": Case("ring.py", TWO, (("init_process_group(", "init_process_grope("),)),
    "one call more": Case(DDP, TWO, (("data = torch", """if rank == 1:
    dist.all_reduce(torch.tensor([7, 7, 12345678]))
data = torch"""),)),
    "members only": Case("ring.py", changes=ring_with(
        "if rank < 2:", "    dist.new_group([0, 1])")),
    "members alone": Case("ring.py", changes=ring_with(
        "if rank < 2:",
        "    pair = dist.new_group([0, 1], use_local_synchronization=True)",
        "    dist.all_reduce(mine, group=pair)",
        "both = dist.new_group([0, 2])", "if rank in (0, 2):",
        "    dist.all_reduce(mine, group=both)")),
    "unused": Case(DDP, TWO, (("rank, ranks =", """class Unused(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)
        self.more = nn.Linear(1, 1)
rank, ranks ="""), ("nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))", "Unused()"))),
    "silent": Case("ring.py", TWO, changes=(("import torch.distributed as dist\n", ""),
                                       ("dist.init_process_group", "exit() or torch.full"))),
    "no file": Case("none.py"),
    "no ranks": Case("ring.py", ()),
    "zero ranks": Case("ring.py", ("-n", "0")),
    "decides": Case("ring.py", TWO, changes=ring_with(
        "dist.all_reduce(large := torch.ones(100))", "large[large > 3]")),
    "decides late": Case("ring.py", changes=(
        ("rank % 2 == 0", "rank >= 0"),
        *ring_with("dist.all_reduce(total, async_op=True).is_completed()"))),
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
OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
STEP = "    optimizer.step()\n"
CLEAR = ("    optimizer.zero_grad()\n", "    model.zero_grad()\n")
FORWARD = "    loss = model(torch.randn(3, 4, generator=data)).pow(2).mean()\n    loss.backward()\n"
REDUCTION = """    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= ranks
"""


def two(*synchronised: bool) -> tuple[tuple[str, str]]:
    """Two micro-batches, each with or without DDP's reduction."""
    texts = [
        FORWARD if whole else "    with model.no_sync():\n" + indent(FORWARD, "    ")
        for whole in synchronised
    ]
    return ((FORWARD, "".join(texts)),)


def zero(source: str) -> tuple[tuple[str, str], ...]:
    """Each rank updates every second parameter, and sends it from a rank."""
    owned = "owned = list(model.parameters())[rank::ranks]\n"
    send = f"        dist.broadcast(parameter.data, {source})\n"
    return (
        CLEAR,
        (OPTIMIZER, f"{owned}optimizer = torch.optim.SGD(owned, lr=0.1)\n"),
        (STEP, f"{STEP}    for place, parameter in enumerate(model.parameters()):\n{send}"),
    )


def sharded(part: str, optimizer: str = "SGD") -> tuple[tuple[str, str], ...]:
    """Each rank updates a part of all parameters with a part of their gradients, and gathers."""
    return (
        CLEAR,
        (
            OPTIMIZER,
            f"""flat = nn.utils.parameters_to_vector(model.parameters()).detach()
half = flat.numel() // ranks
shard = nn.Parameter(flat[rank * half : (rank + 1) * half].clone())
optimizer = torch.optim.{optimizer}([shard], lr=0.1)
""",
        ),
        (
            REDUCTION,
            f"""    grads = torch.cat([each.grad.reshape(-1) for each in model.parameters()])
    dist.all_reduce(grads)
    place = 0
    for parameter in model.parameters():
        parameter.grad.copy_(grads[place : place + parameter.numel()].view_as(parameter))
        place += parameter.numel()
    shard.grad = grads[{part} * half : ({part} + 1) * half] / ranks
""",
        ),
        (
            STEP,
            f"""{STEP}    dist.all_gather_into_tensor(flat, shard.detach())
    nn.utils.vector_to_parameters(flat, model.parameters())
""",
        ),
    )


SEED = ("torch.manual_seed(0)\n", "")
EQUAL = "4 parameters equal on ranks 0,1 after step 2, each by the same sum of"
TRAINED = {
    "ddp": (Case(DDP, TWO), f"{EQUAL} 2 gradients times 1/2"),
    "by hand": (Case(BY_HAND, TWO), f"{EQUAL} 2 gradients times 1/2"),
    "zero": (Case(BY_HAND, TWO, zero("place % ranks")),
             "2 parameters equal on ranks 0,1 after step 2, each by the same sum of 2 gradients "
             "times 1/2; 2 parameters equal on ranks 0,1 after step 2"),
    "sharded, Adam": (Case(BY_HAND, TWO, sharded("rank", "Adam")),
                      "4 parameters equal on ranks 0,1 at the end"),
    "FSDP": (PROVED["fsdp.py"], "8 parameters in parts on ranks 0,1, each by the same gradient"),
    "averages data": (Case(BY_HAND, TWO, (
        (REDUCTION, ""), (STEP, STEP + REDUCTION.replace(".grad", ".data")))),
        "4 parameters equal on ranks 0,1 after step 2, made equal after other gradients"),
    "weighs": (Case(BY_HAND, TWO, ((
        "        parameter.grad /= ranks\n", ""), (
        "        dist.all", "        parameter.grad *= (1 + rank) / 3\n        dist.all"))),
        f"{EQUAL} 2 gradients; each rank scales by its own factor: 1/3 on rank 0, 2/3 on rank 1"),
}  # fmt: skip
"""Correct training steps, and what their proof states."""
DRIFT = (
    "expected the data of rank 0, which holds a replica, got data that is computed otherwise: "
    "update both by the same gradient, learning rate and state"
)
BROKEN = {
    "never reduced": (Case(DDP, TWO, two(False, False)),
        "rank 1, gradient of module.2.weight at ddp.py:21: expected the gradient of rank 0, which "
        "holds a replica, that is a sum over rank 0, got a sum over rank 1: reduce it over ranks "
        "0,1"),
    "learning rates": (Case(DDP, TWO, (("lr=0.1", "lr=0.1 * (1 + rank)"),)),
        f"rank 1, module.2.weight after step 1 at ddp.py:17: {DRIFT}"),
    "no seed": (Case(BY_HAND, TWO, (SEED,)),
        "rank 1, gradient of 2.weight at by_hand.py:19: expected the data of rank 0, as both get "
        "one sum of gradients, got other data from the start: seed both alike, or broadcast the "
        "parameters before the first step"),
    "reduced again": (Case(BY_HAND, TWO, ((FORWARD, FORWARD + REDUCTION.replace(
        "        parameter.grad /= ranks\n", "") + FORWARD),)),
        "rank 0, gradient of 0.weight at by_hand.py:24: expected one coefficient for all of its "
        "terms, got 1/2 and 1: reduce every gradient once, and scale all ranks alike"),
    "not sent": (Case(BY_HAND, TWO, zero("place % ranks if place < 3 else 0")),
        "rank 1, 2.bias after step 2 at by_hand.py:21: expected the data that the optimizer has "
        "written, got those of before the step: send it from the rank that updates it"),
    "other part, Adam": (Case(BY_HAND, TWO, sharded("(1 - rank)", "Adam")),
        "rank 0, 2.weight at by_hand.py:27: expected elements 0 to 7 to be updated by their own "
        "gradients, got gradients of other elements: let each rank update the part that it sends"),
}  # fmt: skip
"""Broken training steps, and the sentence that refutes them."""
LOSS = "    loss.backward()\n"
TOTAL = "total = loss.detach() * torch.ones(100)\ndist.all_reduce(total)\n"
OWN, OTHERS = "by a value of its own", "by a value that others computed"
HARMLESS = "taken the other way: all ranks still agree"
ADVICE = "let all ranks decide alike, by an all_reduce of the flag before"


def after(text: str, line: str = STEP) -> tuple[str, str]:
    """Lines after one of the training step."""
    return line, line + indent(text, "    ")


def turned(line: int, whose: str) -> str:
    """What is printed of a decision that only one side of survives."""
    ranks = "rank 0" if whose == OWN else "ranks 0,1"
    return f"{ranks} may go the other way at ddp.py:{line}, {whose}: {ADVICE}"


DECIDES = {
    "leaves a step out": ((LOSS, "    if loss > 100:\n        continue\n" + LOSS), turned(16, OWN)),
    "stops by a mean of NumPy": (
        after("import numpy as np\nif np.mean([loss.item(), 1.0]) < 0.01:\n    break\n"),
        turned(19, OWN)),
    "draws whether to stop": (
        after("import random\nif random.random() < 0:\n    break\n"), turned(19, OWN)),
    "an index read back from json": (
        after("import json\nplace = int(json.loads(json.dumps([loss.item()]))[0] * 0)\n"
              "if ['go', 'go', 'stop'][place] == 'stop':\n    break\n"), turned(20, OWN)),
    "a length among others": (
        after("part = torch.zeros(9)[: int(loss.item() * 0) + 1]\n"
              "if len(part) in {5, 6} or 9 != len(torch.zeros(9)):\n    break\n"), turned(19, OWN)),
    "one rank alone by a sum": (
        after(TOTAL + "if total.mean().item() > 3 and rank == 0:\n    dist.barrier()\n"),
        turned(20, OTHERS)),
    "logs": (after("print(f'{loss.item():.3f} {float(loss)}', loss, '%d' % loss.item())\n"), ""),
    "keeps the best": (
        after("best = 3.0\nif rank == 0 and loss.item() < best:\n    best = loss.item()\n"
              "    torch.save(model.state_dict(), 'best.pt')\n"), f"3 decisions {HARMLESS}"),
    "raises on all ranks": (
        after(TOTAL + "if total.isnan().any():\n    raise ValueError\n"),
        f"2 decisions {HARMLESS}"),
    "draws once more what is out of bounds": (
        after("nn.init.trunc_normal_(torch.empty(99), a=-0.1, b=9.0)\n"), ""),
    "draws alike": (
        after("import random\nrandom.seed(3)\nif random.random() < 0.5:\n    dist.barrier()\n"),
        ""),
}  # fmt: skip
"""One change of a training step, and what is found; nothing where there is no other way."""
CHOICES = {name: Case(DDP, TWO, (change,)) for name, (change, _) in DECIDES.items()}
OWN_READS = Case(
    "ring.py",
    TWO,
    ring_with("both = torch.arange(8.0)", "dist.all_reduce(both[:4])", "dist.all_reduce(both * 2)"),
)
"""The recorder reads the second half of a buffer whose first half other ranks computed."""
USES, FILES = Case("uses.py", TWO), Case("files.py", TWO)
NO_CUDA = (
    "RuntimeError: No CUDA GPUs are available"
    if "+cpu" not in version("torch")
    else "AssertionError: Torch not compiled with CUDA enabled"
)
