"""Writes the kept sample of mutants anew: `python tests/helpers/mutation_keep.py`.

For every way there is one program in `tests/golden/mutants` that the explorer finds harmful, and
one that does no harm where the way has such. `index.json` states which properties of each fail.
Small ones are chosen, of the method that has the fewest so far.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
from mutation import PROGRAM_WAYS
from mutation_oracle import STEPS, changes
from oracle.explore import explore

from primepar.partition import PRIMITIVES
from primepar.schedule import Program, save_program

FOLDER = Path(__file__).parents[1] / "golden" / "mutants"
LARGEST = 13_000
"""Bytes of a kept program, as JSON, unless a way has none so small."""
MOST = 4
TWO = {"forgotten sum": (("tesseract",), ("step in rows", "step in blocks"))}
"""Ways of which two are kept: the sum over the depth, and that of a gradient over the rows."""


class Kept(msgspec.Struct, frozen=True):
    """One line of the index."""

    file: str
    method: str
    way: str
    where: str
    fails: tuple[str, ...]
    """Properties that must be refuted; none where all must be proved."""


def index() -> list[Kept]:
    """What is kept."""
    return msgspec.json.decode((FOLDER / "index.json").read_bytes(), type=list[Kept])


def candidates(way: str, methods: tuple[str, ...]) -> Iterator[tuple[str, str, Program]]:
    """(method, where, program) of these methods in order, but the large ones last."""
    cases = [(method, *case) for method in methods for case in changes(method, way, MOST)]
    yield from sorted(cases, key=lambda case: len(msgspec.json.encode(case[2])) > LARGEST)


def chosen() -> Iterator[tuple[Kept, Program]]:
    """What to keep."""
    used = Counter[str]()
    wanted = [(way, True, methods) for way in PROGRAM_WAYS for methods in TWO.get(way, ((),))]
    wanted += [(way, False, ()) for way in PROGRAM_WAYS]
    for way, harmful, only in wanted:
        methods = only or tuple(sorted((*PRIMITIVES, *STEPS), key=lambda name: used[name]))
        for method, where, program in candidates(way, methods):
            failed = explore(program).failed
            if bool(failed) == harmful:
                parts = [way, method] if harmful else [way, method, "harmless"]
                name = ".".join(part.replace(" ", "-") for part in parts) + ".json"
                yield Kept(name, method, way, where, tuple(sorted(failed))), program
                used[method] += 1
                break


def main() -> None:
    """Write the sample."""
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.json"):
        path.unlink()
    kept = []
    for mutant, program in chosen():
        kept.append(mutant)
        save_program(program, FOLDER / mutant.file)
    text = msgspec.json.format(msgspec.json.encode(kept), indent=1)
    (FOLDER / "index.json").write_bytes(text + b"\n")
    print(f"{len(kept)} programs in {FOLDER}")


if __name__ == "__main__":
    main()
