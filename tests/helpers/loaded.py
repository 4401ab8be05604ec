"""What a fresh interpreter has imported after a statement."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = {"torch", "z3", "mpi4py", "matplotlib", "numpy", "scipy"}


def modules_of(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter holds after `statement`."""
    script = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def loaded_by(statement: str) -> set[str]:
    """Return the heavy packages that a fresh interpreter holds after `statement`."""
    return HEAVY & modules_of(statement)
