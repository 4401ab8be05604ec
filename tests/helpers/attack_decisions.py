"""Generates small scripts that branch on own, received and agreed values; gloo runs both outcomes.

Each script reads a table of numbers, one for each value and rank, from its arguments. Preflight
sees one table. Then gloo runs the script on two ranks: with that table, and with each of its
numbers turned round, or so large that it decides a sum. A script is broken if one of
these runs does not come to its end. Preflight must refute the broken ones and prove the others.

`python tests/helpers/attack_decisions.py 200 1` generates 200 scripts, from seed 1, and prints a
line for each verdict that gloo contradicts.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import indent
from time import monotonic, sleep
from typing import NamedTuple

RANKS, VALUES, LONGEST = 2, 2, 4.0
HEAD = """import json, math, sys
from datetime import timedelta
import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=2))
rank, ranks = dist.get_rank(), dist.get_world_size()
data = torch.tensor(json.loads(sys.argv[1]))
block, large = torch.ones(3), torch.ones(100)
best, count = 0.5, 0
"""
COMMUNICATIONS = (
    "dist.all_reduce(block)",
    "dist.barrier()",
    "dist.broadcast(block, 1)",
    "dist.all_gather([torch.empty(3), torch.empty(3)], block)",
    "if rank == 0:\n    dist.send(block, 1)\nelse:\n    dist.recv(block, 0)",
)
LOCAL = ("count += 1", "best = float(value)", "block = block * 2", "text = f'{value:.3f}'",
         "block = block * value", "json.dumps([float(value)])")  # fmt: skip
OWN = ("value = data[{k}, rank].item()", "value = (data[{k}, rank] * 2).mean()",
       "value = float(data[{k}, rank]) + 0.25 * count")  # fmt: skip
AGREED = (
    "value = data[{k}, rank].clone()\ndist.all_reduce(value)",
    "value = large * data[{k}, rank]\ndist.all_reduce(value)\nvalue = value.mean().item()",
    "value = large * data[{k}, rank]\ndist.broadcast(value, 0)\nvalue = value.mean()",
    "value = torch.tensor([float(data[{k}, rank] > 0)])\ndist.broadcast(value, 1)\n"
    "value = value.item() - 0.5",
    "values = [None] * ranks\ndist.all_gather_object(values, data[{k}, rank].item())\n"
    "value = max(values)",
    "value = large * data[{k}, rank]\ndist.all_reduce(value, dist.ReduceOp.MAX)\n"
    "value = float(value[0])",
)
OTHERS = (
    "value = large * data[{k}, rank]\ndist.reduce(value, 0)\n"
    "value = value.mean().item() if rank == 0 else data[{k}, rank].item()",
    "value = data[{k}, rank].clone()\nif rank == 0:\n    dist.send(value, 1)\nelse:\n"
    "    dist.recv(value, 0)",
    "values = [torch.empty(100) for _ in range(ranks)]\n"
    "dist.all_gather(values, large * data[{k}, rank])\nvalue = values[1 - rank].mean()",
)
CONDITIONS = ("value > 0", "value < best", "not value <= 0", "0 < value", "bool(value > 0)",
              "math.floor(value) >= 0", "max(value, 0.0) > 0")  # fmt: skip


class Script(NamedTuple):
    """A script and the table that preflight sees."""

    text: str
    table: list[list[float]]

    def tables(self) -> Iterator[list[list[float]]]:
        """The table, and it with each number turned round and enlarged."""
        yield self.table
        for value in range(VALUES):
            for rank in range(RANKS):
                for factor in (-1, -20, 20):
                    turned = [list(row) for row in self.table]
                    turned[value][rank] *= factor
                    yield turned


def script(seed: int) -> Script:
    """The script of a seed."""
    draw = random.Random(seed)
    lines = [HEAD]
    for place in range(draw.randint(1, VALUES)):
        kind = draw.choice((OWN, OWN, AGREED, AGREED, OTHERS))
        lines.append(draw.choice(kind).format(k=place))
        lines.append(_branch(draw))
        if draw.random() < 0.4:
            lines.append(draw.choice(COMMUNICATIONS))
    lines.append("dist.barrier()\ndist.destroy_process_group()\n")
    table = [[draw.choice((-1.0, 1.0)) * draw.randint(2, 9) for _ in range(RANKS)]
             for _ in range(VALUES)]  # fmt: skip
    return Script("\n".join(lines), table)


def _branch(draw: random.Random) -> str:
    condition, one = draw.choice(CONDITIONS), draw.choice(LOCAL)
    calls = [draw.choice(COMMUNICATIONS) for _ in range(2)]
    match draw.randrange(6):
        case 0 | 1:
            return f"if {condition}:\n    {one}"
        case 2:
            return f"if {condition}:\n" + indent(f"{one}\n{calls[0]}", "    ")
        case 3:
            other = calls[0] if draw.random() < 0.5 else calls[1]
            return (f"if {condition}:\n{indent(calls[0], '    ')}\nelse:\n"
                    + indent(other, "    "))  # fmt: skip
        case 4:
            way = draw.choice(("break", "continue"))
            head = f"for step in range(3):\n    if step == 1 and {condition}:\n        {way}\n"
            return head + indent(calls[0], "    ")
    return f"if rank == {draw.randrange(2)} and {condition}:\n    {one}"


def ends(text: str, table: list[list[float]]) -> bool:
    """Whether all ranks of a script come to their end on gloo."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [_started(text, table, rank, folder) for rank in range(RANKS)]
        results: dict[int, int] = {}
        end = monotonic() + LONGEST
        while len(results) < RANKS and monotonic() < end and not any(results.values()):
            for process in ranks:
                if process not in results:
                    done, status = os.waitpid(process, os.WNOHANG)
                    if done:
                        results[process] = status
            sleep(0.005)
        for process in set(ranks) - set(results):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    return len(results) == RANKS and not any(results.values())


def _started(text: str, table: list[list[float]], rank: int, folder: str) -> int:
    process = os.fork()
    if process:
        return process
    code = 1
    with suppress(BaseException):
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        import torch.distributed as dist

        start = dist.init_process_group
        vars(dist)["init_process_group"] = lambda backend, timeout: start(
            backend, init_method=f"file://{folder}/store", rank=rank, world_size=RANKS,
            timeout=timeout,
        )  # fmt: skip
        sys.argv = ["script.py", json.dumps(table)]
        exec(compile(text, "script.py", "exec"), {"__name__": "__main__"})
        code = 0
    os._exit(code)


def verdict(case: Script, folder: Path) -> str:
    """The verdict of preflight on a script."""
    from primepar.preflight.capture.torch_capture import capture_torch
    from primepar.preflight.recording import program_of
    from primepar.preflight.verdict import verdict_of

    path = folder / "script.py"
    path.write_text(case.text)
    recorded, recorder = capture_torch(path, [json.dumps(case.table)], RANKS, 60.0)
    program = program_of(recorded, "script.py")
    report = verdict_of(program, recorded, "script.py", 60.0, recorder=recorder)
    return str(report.verdict)


def contradictions(seeds: range, folder: Path) -> tuple[Counter[tuple[str, bool]], list[int]]:
    """(Verdict, whether gloo always ends) -> scripts, and the seeds where they contradict."""
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    counts: Counter[tuple[str, bool]] = Counter()
    wrong = []
    for seed in seeds:
        case = script(seed)
        right = all(ends(case.text, table) for table in case.tables())
        answer = verdict(case, folder)
        counts[answer, right] += 1
        if answer != ("proved" if right else "refuted"):
            wrong.append(seed)
    return counts, wrong


def main() -> None:
    """Attack, and print what is contradicted."""
    count, first = (int(text) for text in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + count):
            counts, wrong = contradictions(range(seed, seed + 1), Path(folder))
            for answer, right in counts:
                print(f"seed {seed}: {answer}, gloo {'ends' if right else 'hangs'}"
                      + (" WRONG" if wrong else ""), flush=True)  # fmt: skip
            if wrong:
                print(script(seed).text.removeprefix(HEAD), script(seed).table, flush=True)


if __name__ == "__main__":
    main()
