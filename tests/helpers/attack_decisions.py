"""Generates small scripts that branch on own, received and agreed values; gloo runs both outcomes.

Each script reads a table of numbers, one for each value and rank, from its arguments. Preflight
sees one table. Then gloo runs the script on two ranks: with that table, and with each of its
numbers turned round, or so large that it decides a sum. A script is broken if one of
these runs does not come to its end. Preflight must refute the broken ones and prove the others.

Whether a run hangs is no question of time: a machine under load is slow. It hangs where all threads
of all ranks sleep, and none went on while the threads by which gloo receives have looked
often for what has come.

`python tests/helpers/attack_decisions.py 200 1` generates 200 scripts, from seed 1. It prints those
whose verdict gloo contradicts, and at the end how many there were of each verdict. One that was
stopped goes on from the seed that it printed last.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import indent
from time import sleep
from typing import NamedTuple

RANKS, VALUES = 2, 2
ROUNDS = 20
"""Rounds of the loops of gloo, of 10 ms each, in which nothing arrives at ranks that all sleep."""
HEAD = """import json, math, sys
from datetime import timedelta
import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(minutes=30))
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
        for value in [value for value in range(VALUES) if f"data[{value}" in self.text]:
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
        running = {_started(text, table, rank, folder) for rank in range(RANKS)}
        failed, asleep, rounds = False, None, {}
        try:
            while running and not failed:
                sleep(0.01)
                for process in sorted(running):
                    done, status = os.waitpid(process, os.WNOHANG)
                    if done:
                        running.remove(process)
                        failed |= status != 0
                threads, loops = _threads(running)
                if threads is None or threads != asleep:
                    asleep, rounds = threads, loops
                elif all(loops[process] >= rounds[process] + ROUNDS for process in running):
                    break
        finally:
            for process in running:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
    return not running and not failed


def _threads(processes: set[int]) -> tuple[dict[str, int] | None, dict[int, int]]:
    """(Thread -> times that it went on, process -> rounds of gloo's loop) of ranks that sleep.

    None in the place of the threads while one of them runs, or has no loop yet.
    """
    went_on, loops = {}, {}
    with suppress(OSError):
        for process in processes:
            for folder in Path(f"/proc/{process}/task").iterdir():
                status = (folder / "status").read_text()
                switches = sum(map(int, re.findall(r"ctxt_switches:\s+(\d+)", status)))
                if "gloo_tcp_loop" in status:
                    loops[process] = switches
                elif "State:\tS" in status:
                    went_on[str(folder)] = switches
                else:
                    return None, {}
        if loops.keys() == processes:
            return went_on, loops
    return None, {}


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
    """Attack, print what is contradicted, and count."""
    count, first = (int(text) for text in sys.argv[1:3])
    total: Counter[tuple[str, bool]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + count):
            counts, wrong = contradictions(range(seed, seed + 1), Path(folder))
            total += counts
            if wrong:
                print(f"seed {seed} WRONG {counts}\n{script(seed).text.removeprefix(HEAD)}\n"
                      f"{script(seed).table}", flush=True)  # fmt: skip
            elif seed % 50 == 0:
                print(f"seed {seed}", flush=True)
    for (answer, right), scripts in sorted(total.items()):
        print(f"{scripts} {answer}, gloo {'ends' if right else 'hangs or raises'}")
    print(f"{sum(os.times()[:4]):.0f} s of CPU")


if __name__ == "__main__":
    main()
