"""How long a capture takes, and how much memory: one training step on a pipeline x tensor mesh.

`python -m benchmarks.preflight 8 8` captures `benchmarks/preflight_step.py` on 64 ranks, proves it,
and prints one line. Memory is the largest sum over all processes, each page counted once.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from time import perf_counter, sleep

STEP = Path(__file__).parent / "preflight_step.py"
SAMPLED = 0.25
"""Seconds between two looks at the memory, or 20 times as long as a look takes."""


def capture(stages: int, tensor: int) -> dict[str, object]:
    """Capture and prove the step; what is printed of it."""
    from primepar.preflight.capture.torch_capture import capture_torch
    from primepar.preflight.recording import program_of
    from primepar.preflight.verdict import verdict_of

    start = perf_counter()
    recorded, _ = capture_torch(STEP, [str(stages), str(tensor)], stages * tensor, limit=3600)
    captured = perf_counter()
    program = program_of(recorded, str(STEP))
    report = verdict_of(program, recorded, str(STEP), timeout=3600)
    used = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    return {
        "verdict": report.verdict,
        "instructions": sum(map(len, program.programs)),
        "capture": captured - start,
        "proof": perf_counter() - captured,
        "cpu": sum(usage.ru_utime + usage.ru_stime for usage in used),
    }


def resident(root: int) -> float:
    """MiB of a process and of those that it forked; a page of several counts once."""
    total = 0
    for process in (root, *_children(root)):
        with suppress(OSError, TypeError):
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
            total += int(re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)[1])  # type: ignore[index]
    return total / 1024


def _children(process: int) -> list[int]:
    with suppress(OSError):
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
        return [int(word) for word in text.split()]
    return []


def main() -> None:
    """Capture in a process of its own, and watch its memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("stages", type=int)
    parser.add_argument("tensor", type=int)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        print(json.dumps(capture(asked.stages, asked.tensor)))
        return
    command = [sys.executable, "-m", "benchmarks.preflight", *sys.argv[1:], "--inside"]
    inside = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=STEP.parents[1])
    peak = 0.0
    while inside.poll() is None:
        start = perf_counter()
        peak = max(peak, resident(inside.pid))
        sleep(max(SAMPLED, 20 * (perf_counter() - start)))
    assert inside.stdout is not None
    result = json.loads(inside.stdout.read())
    print(
        f"{asked.stages * asked.tensor} ranks, {asked.stages} stages x {asked.tensor}: "
        f"{result['verdict']}, {result['instructions']} instructions, capture "
        f"{result['capture']:.1f} s, proof {result['proof']:.1f} s, CPU {result['cpu']:.1f} s, "
        f"peak {peak:.0f} MiB, load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
