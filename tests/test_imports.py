"""Importing the light packages loads none of the heavy ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = Path(__file__).resolve().parent.parent / "docs" / "examples" / "config.json"
HEAVY = {"torch", "z3", "mpi4py", "matplotlib", "numpy", "scipy"}


def loaded_by(statement: str) -> set[str]:
    """Return the heavy packages that a fresh interpreter holds after `statement`."""
    script = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return HEAVY & set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "package",
    ["primepar", "primepar.schedule", "primepar.partition", "primepar.models", "primepar.plan",
     "primepar.cli"],
)  # fmt: skip
def test_a_light_package_loads_nothing_heavy(package: str) -> None:
    assert loaded_by(f"import {package}") == set()


def test_a_plan_is_made_and_described_with_numpy_at_most() -> None:
    """NumPy, because lowering evaluates maps on arrays of all devices and steps."""
    statements = (
        "from primepar.models import load_config",
        "from primepar.plan import ready_plan",
        "from primepar.plan.description import describe",
        f"describe(ready_plan('summa', load_config({str(CONFIG)!r}), 4))",
    )
    assert loaded_by("; ".join(statements)) <= {"numpy"}


def test_a_primitive_is_traced_without_anything_heavy() -> None:
    statements = (
        "from primepar.partition import PRIMITIVES",
        "from primepar.schedule.tracing import maps_of",
        "list(map(maps_of, (kind() for kind in PRIMITIVES.values())))",
    )
    assert loaded_by("; ".join(statements)) == set()


def test_a_heavy_import_is_seen() -> None:
    assert "numpy" in loaded_by("import primepar, numpy")
