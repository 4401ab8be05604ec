"""The house stays as it is drawn: its rooms, its two links, its sizes and its pins."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
ROOMS = (
    "primepar/schedule",
    "primepar/partition",
    "primepar/distributed",
    "reference",
    "verify",
    "tutorials",
    "tutorials/exercises",
    "tests",
    "docs",
    "benchmarks",
)
# Spelt in halves, so that this file does not find itself.
OUTSIDE = ("../" + "shared", "farm" + "-studio", "." + "library", "/work" + "/")


def kept_files() -> list[Path]:
    """Return the files that git tracks or would track, without links."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def too_wide(text: str) -> list[str]:
    """Return the lines of a source text that are too wide."""
    lines = enumerate(text.splitlines(), 1)
    return [f"line {i} has {len(line)} columns" for i, line in lines if len(line) > 100]


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_exists(room: str) -> None:
    assert (ROOT / room).is_dir()


@pytest.mark.parametrize("name", ["reference", "verify"])
def test_a_reader_is_packaged_through_a_relative_link(name: str) -> None:
    link = ROOT / "primepar" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..", name)
    assert link.resolve() == ROOT / name


def test_the_broken_schedules_are_packaged_through_a_relative_link() -> None:
    link = ROOT / "primepar" / "commands" / "broken"
    assert link.is_symlink()
    assert link.readlink() == Path("..", "..", "tutorials", "exercises", "broken")


def test_no_source_file_is_too_wide() -> None:
    found = {
        str(path.relative_to(ROOT)): problems
        for path in kept_files()
        if path.suffix == ".py" and (problems := too_wide(path.read_text()))
    }
    assert found == {}


def test_a_line_that_is_too_wide_is_seen() -> None:
    assert too_wide("x\n" + "y" * 101) == ["line 2 has 101 columns"]
    assert too_wide("y" * 100 + "\n" + "x\n") == []


def test_no_file_speaks_of_what_is_not_in_the_repository() -> None:
    found = [
        (str(path.relative_to(ROOT)), word)
        for path in kept_files()
        for word in OUTSIDE
        if word.encode() in path.read_bytes()
    ]
    assert found == []


EVIDENCE = {"evidence", "words", "counterexample", "report", "findings", "Report", "Counterexample"}


def reads_evidence_and_has_patterns(text: str) -> bool:
    """Whether a module handles what is wrong, as data, and could look for it in its sentence."""
    if not re.search(r"^\s*(?:import|from) re\b", text, re.MULTILINE):
        return False
    imports = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    modules = {getattr(node, "module", None) or "" for node in imports}
    names = {alias.name for node in imports for alias in node.names}
    return "re" in modules | names and bool(
        EVIDENCE & {part for name in modules | names for part in name.split(".")}
    )


def test_no_sentence_of_ours_is_read_by_a_regular_expression() -> None:
    rooms = ("primepar", "reference", "verify")
    found = [
        path
        for path in kept_files()
        if path.suffix == ".py"
        and path.relative_to(ROOT).parts[0] in rooms
        and reads_evidence_and_has_patterns(path.read_text())
    ]
    assert found == []
    report = "from primepar.verify.report import Report\n"
    assert reads_evidence_and_has_patterns(report + "import re\n")
    assert not reads_evidence_and_has_patterns(report)


def test_every_dependency_is_pinned_to_a_version_that_its_range_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *(line for lines in project["project"]["optional-dependencies"].values() for line in lines),
        *(line for lines in project["dependency-groups"].values() for line in lines),
    ]
    text = (ROOT / "constraints.txt").read_text()
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", text, flags=re.MULTILINE))
    wrong = [line for line in asked if not allowed(Requirement(line), pins)]
    assert wrong == []


def allowed(requirement: Requirement, pins: dict[str, str]) -> bool:
    """Whether `requirement` has a pin and accepts it."""
    return requirement.name in pins and requirement.specifier.contains(pins[requirement.name])


def test_a_missing_pin_and_one_out_of_range_are_seen() -> None:
    assert allowed(Requirement("z3-solver>=5,<6"), {"z3-solver": "5.4.0.0"})
    assert not allowed(Requirement("z3-solver>=5,<6"), {"z3-solver": "4.16.0"})
    assert not allowed(Requirement("z3-solver>=5,<6"), {})
