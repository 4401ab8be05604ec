"""Importing the light packages loads none of the heavy ones."""

from __future__ import annotations

from pathlib import Path

from loaded import loaded_by, modules_of

LIGHT = ("schedule", "partition", "models", "plan", "api", "cli")
CONFIG = Path(__file__).resolve().parents[2] / "docs" / "examples" / "config.json"


def test_light_packages_load_nothing_heavy() -> None:
    packages = ("primepar", *(f"primepar.{name}" for name in LIGHT))
    assert loaded_by(f"import {', '.join(packages)}") == set()


def test_a_plan_is_made_and_described_with_numpy_at_most() -> None:
    """NumPy, because lowering evaluates maps on arrays of all devices and steps."""
    statements = (
        "from primepar.models import load_config",
        "from primepar.plan import preset_plan",
        "from primepar.plan.description import describe",
        f"describe(preset_plan('summa', load_config({str(CONFIG)!r}), 4))",
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


def test_a_linear_map_is_checked_without_transformer_and_kernels() -> None:
    asked = (
        "from primepar.partition import parse_sequence\n"
        "from primepar.reference import check\n"
        "assert check(parse_sequence('P2x2')).equal"
    )
    model = ("operators", "plan", "models", "reference.kernels", "reference.emulator.model")
    oracle = [
        f"reference.oracle.{name}" for name in ("layers", "attention", "transformer", "train")
    ]
    banned = tuple(f"primepar.{name}" for name in (*model, *oracle))
    loaded = modules_of(asked)
    assert "primepar.reference.oracle.linear" in loaded
    assert [name for name in sorted(loaded) if name.startswith(banned)] == []
    assert "primepar.reference.kernels" in modules_of("import primepar.reference.emulator.model")
