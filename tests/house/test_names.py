"""Names and imports: one meaning for each class name, clear module names, no import circle."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("primepar", "reference", "verify", "benchmarks")
VAGUE = {
    "alone", "amount", "answer", "data", "draft", "final", "flow", "found", "given",
    "least", "locate", "misc", "moves", "moving", "parts", "places", "ready", "side", "sites",
    "spread", "stream", "tables", "targets", "things", "touches", "utils",
}  # fmt: skip
"""Names of modules that one must open to know what is in them."""
DATA = {"primepar.distributed.training.data"}
"""Where one of these is the field's word for what is in the module: a training run's data."""


def modules() -> dict[str, Path]:
    """Import name -> file, of the package and of the folders next to it."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "broken" in path.parts:
                continue
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            linked = folder in ("reference", "verify")
            found[("primepar." * linked + name).removesuffix(".__init__")] = path
    return found


MODULES = modules()


IMPORT = re.compile(
    r"^ *from (\S+) import (?:\((?:  #.*\n)?([^)]*)\)|(.*))|^ *import (\w.*)", re.MULTILINE
)
CLASS = re.compile(r"^ *class ([A-Za-z]\w*)[(:]", re.MULTILINE)


def imported(module: str) -> Iterator[str]:
    """Modules of ours that a module imports, inside functions and for types too."""
    for source, several, one, alone in IMPORT.findall(MODULES[module].read_text()):
        names = [name.split()[0] for name in (several or one or alone).split(",") if name.strip()]
        for name in names:
            full = f"{source}.{name}" if source else name
            yield full if full in MODULES else source or name


def test_modules_are_found_through_no_link_twice() -> None:
    files = [path.resolve() for path in MODULES.values()]
    assert len(files) == len(set(files)) > 300


def test_no_public_class_has_the_name_of_another() -> None:
    places = defaultdict(list)
    for module, path in MODULES.items():
        for name in CLASS.findall(path.read_text()):
            places[name].append(module)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_module_name_is_vague() -> None:
    vague = [module for module in MODULES if module.rpartition(".")[2] in VAGUE]
    assert set(vague) == DATA


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = networkx.DiGraph(
        (module, other) for module in MODULES for other in imported(module)
        if other in MODULES and other != module
    )  # fmt: skip
    assert list(networkx.simple_cycles(graph)) == []


@pytest.mark.parametrize("package", ["distributed", "models", "reference", "verify", "plan"])
def test_what_a_package_names_can_be_imported(package: str) -> None:
    module = import_module(f"primepar.{package}")
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
