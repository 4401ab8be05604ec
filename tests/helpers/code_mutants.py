"""`python tests/helpers/code_mutants.py`: changes of one token in the product, and who sees them.

A mutant is one file with one change: a comparison turned or moved by one, `and` for `or`, a number
plus one, an addition turned into a subtraction, a condition negated, `None` returned, a statement
removed. For each room as many mutants are drawn, with a seed; those of a room are the same ones as
long as its product code is the same. The tests of a room (or those of `--tests`) run until the
first one fails, in a copy of the checkout. The file that is written has for each mutant the test
that fails, or `survived`, or `time` if none failed within `--limit`. Two of these files are
compared by `--before FILE`, which asks first the test that saw a mutant then: ends with 1 if one
that was seen then is not seen now.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = {"verify": "verify", "reference": "reference"}
"""Rooms whose folder is not in `primepar`."""
ROOMS = (
    "certify", "commands", "distributed", "models", "partition", "passes", "pictures", "plan",
    "preflight", "reference", "schedule", "search", "verify",
)  # fmt: skip
TURNED: dict[type[ast.AST], Any] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Div: ast.Mult, ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}  # fmt: skip


class Mutant(NamedTuple):
    """One change: the file, the line, what was there, and what is there now."""

    room: str
    path: str
    start: int
    end: int
    line: int
    old: str
    new: str

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line}: {self.old!r} -> {self.new!r} at {self.start}"


def changes_of(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, ast.expr | ast.stmt]]:
    """What is changed in a node, and into what."""
    match node:
        case ast.Compare(ops=[operator]):
            yield node, ast.Compare(node.left, [TURNED[type(operator)]()], node.comparators)
        case ast.BoolOp(op=operator):
            yield node, ast.BoolOp(TURNED[type(operator)](), node.values)
        case ast.BinOp(op=operator) if type(operator) in TURNED:
            yield node, ast.BinOp(node.left, TURNED[type(operator)](), node.right)
        case ast.Constant(value=bool() as truth):
            yield node, ast.Constant(not truth)
        case ast.Constant(value=int() as number):
            yield node, ast.Constant(number + 1)
        case ast.If(test=test):
            yield test, ast.UnaryOp(ast.Not(), test)
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield node, ast.Return(ast.Constant(None))
        case ast.AugAssign() | ast.Expr(value=ast.Call() | ast.Yield()) | ast.Raise():
            yield node, ast.Pass()


def is_code(node: ast.AST) -> bool:
    """Whether what is below it runs: annotations, classes' fields and messages do not count."""
    return not isinstance(node, ast.arg | ast.AnnAssign | ast.JoinedStr | ast.Import)


def mutants_of(room: str, path: Path) -> Iterator[Mutant]:
    """Every mutant of the functions of a file, in its order."""
    text = path.read_text(encoding="utf-8")
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def below(node: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(node):
            if is_code(child):
                yield child
                yield from below(child)

    functions = [node for node in ast.parse(text).body if not isinstance(node, ast.Assign)]
    pairs = [pair for one in functions for node in below(one) for pair in changes_of(node)]
    for node, changed in pairs:
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        old, new = (
            text.encode()[start:end].decode(),
            ast.unparse(ast.fix_missing_locations(changed)),
        )
        if isinstance(changed, ast.expr):
            new = f"({new})"
        yield Mutant(room, str(path.relative_to(ROOT)), start, end, node.lineno, old, new)


def drawn(room: str, count: int, files: str, seed: int) -> list[Mutant]:
    """Draw mutants of a room; each file has a share by its lines."""
    folder = ROOT / PRODUCT.get(room, f"primepar/{room}")
    every = [
        mutant
        for path in sorted(folder.rglob("*.py"))
        if re.search(files, str(path.relative_to(ROOT))) and "/broken/" not in str(path)
        for mutant in mutants_of(room, path)
    ]
    some = random.Random(f"{room} {seed}").sample(every, min(count, len(every)))
    return sorted(some, key=lambda mutant: (mutant.path, mutant.start))


def copy_of_checkout(folder: Path) -> Path:
    """Copy what git knows, with its links, so that nobody's edits meet a mutant."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, listed):
        if os.path.lexists(ROOT / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def seen_by(mutant: Mutant, copy: Path, tests: list[str], limit: float, known: str) -> str:
    """The first test that fails, `survived`, or `time`; the one that is known is asked first."""
    path = copy / mutant.path
    content = path.read_bytes()
    path.write_bytes(content[: mutant.start] + mutant.new.encode() + content[mutant.end :])
    try:
        if "::" in known and first_failure(copy, [known], limit) == known:
            return known
        return first_failure(copy, tests, limit)
    finally:
        path.write_bytes(content)


def first_failure(copy: Path, tests: list[str], limit: float) -> str:
    """Run tests in a copy until one fails, and return its name; that of a file if it is broken."""
    words = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no", *tests]
    paths = os.pathsep.join(str(copy / name) for name in ("", "docs", "tests/helpers"))
    child = subprocess.Popen(
        [sys.executable, *words], cwd=copy, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        printed = child.communicate(timeout=limit)[0]
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, 9)
        child.communicate()
        return "time"
    if child.returncode == 0:
        return "survived"
    failed = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", printed, flags=re.MULTILINE)
    return failed[1] if failed else "tests do not start"


def main() -> int:
    """Draw, run and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=ROOMS)
    parser.add_argument("--count", type=int, default=24, help="mutants of each room")
    parser.add_argument("--files", default="", help="a regular expression for their paths")
    parser.add_argument("--tests", nargs="+", help="tests that run, in place of those of the room")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each mutant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "code-mutants.json")
    parser.add_argument("--before", type=Path, help="what an earlier run has written")
    asked = parser.parse_args()
    before = json.loads(asked.before.read_text()) if asked.before else {}
    result, lost = dict[str, str](), 0
    with tempfile.TemporaryDirectory(prefix="code-mutants-") as name:
        copy = copy_of_checkout(Path(name))
        for room in asked.rooms:
            tests = asked.tests or [f"tests/{room}"]
            unchanged = "survived" if before else first_failure(copy, tests, 10 * asked.limit)
            if unchanged != "survived":
                sys.exit(f"{room}: expected its tests to pass without a change, got {unchanged}")
            for mutant in drawn(room, asked.count, asked.files, asked.seed):
                known = before.get(mutant.name, "")
                result[mutant.name] = seen_by(mutant, copy, tests, asked.limit, known)
                was_seen, is_seen = (text not in ("", "survived", "time")
                                     for text in (known, result[mutant.name]))  # fmt: skip
                lost += was_seen and not is_seen
                print(f"{mutant.name}: {result[mutant.name]}", flush=True)
                asked.out.parent.mkdir(parents=True, exist_ok=True)
                asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    ends = Counter(text if text in ("survived", "time") else "seen" for text in result.values())
    print(f"{len(result)} mutants: {ends['seen']} seen, {ends['survived']} survived, "
          f"{ends['time']} beyond the limit; {lost} seen before and not now")  # fmt: skip
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
