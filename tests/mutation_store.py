"""What was judged so far, kept in a file so that a run that was stopped goes on where it was."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from types import TracebackType

import msgspec
from mutation_judge import Generated, Judged

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("primepar/**/*.py", "reference/*.py", "verify/*.py", "tests/*.py")
Key = tuple[str, str, int]


def fingerprint() -> str:
    """Another one after any change of the code: what was judged before counts no more."""
    found = sorted({path for pattern in SOURCES for path in ROOT.glob(pattern)})
    return sha256(b"".join(path.read_bytes() for path in found)).hexdigest()


class Store:
    """A file of lines: the fingerprint of the code, then one mutant or generated program each."""

    def __init__(self, path: Path, of: str) -> None:
        self.mutants: dict[Key, Judged] = {}
        self.generated: dict[int, Generated] = {}
        lines = path.read_bytes().splitlines() if path.exists() else []
        first = msgspec.json.encode(of)
        if lines[:1] == [first]:
            self._read(lines[1:])
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("wb")
        self.file.write(first + b"\n")
        self.keep([*self.mutants.values(), *self.generated.values()])

    def _read(self, lines: Iterable[bytes]) -> None:
        decoder = msgspec.json.Decoder(Judged | Generated)
        for line in lines:
            try:
                self._note(decoder.decode(line))
            except msgspec.DecodeError:
                continue  # a run was stopped while it wrote this line

    def _note(self, one: Judged | Generated) -> None:
        if isinstance(one, Judged):
            self.mutants[one.key] = one
        else:
            self.generated[one.seed] = one

    def keep(self, found: Iterable[Judged | Generated]) -> None:
        """Write what was judged."""
        for one in found:
            self._note(one)
            self.file.write(msgspec.json.encode(one) + b"\n")
        self.file.flush()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.file.close()
