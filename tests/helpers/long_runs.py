"""What the long commands of the tests share: results that are kept in a file, and a bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from multiprocessing import Pool
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("primepar/**/*.py", "reference/**/*.py", "verify/**/*.py", "tests/**/*.py")
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
Found = TypeVar("Found", bound="Keyed")


class Keyed(Protocol):
    """A result that knows what it is the result of."""

    @property
    def key(self) -> Any:
        """Equal for results of the same question."""


def fingerprint() -> str:
    """Another one after any change of the code: what was judged before counts no more."""
    found = sorted({path for pattern in SOURCES for path in ROOT.glob(pattern)})
    return sha256(b"".join(path.read_bytes() for path in found)).hexdigest()


class Store(Generic[Found]):
    """A file of lines: the fingerprint of the code, then one result each, by its `key`.

    A run that was stopped goes on from what it holds; results of other code are dropped.
    """

    def __init__(self, path: Path, of: str, kind: Any) -> None:
        self.kept: dict[Any, Found] = {}
        lines = path.read_bytes().splitlines() if path.exists() else []
        first = msgspec.json.encode(of)
        kept = list(_decoded(lines[1:], kind)) if lines[:1] == [first] else []
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("wb")
        self.file.write(first + b"\n")
        self.keep(kept)

    def keep(self, found: Iterable[Found]) -> None:
        """Note and write what was found."""
        for one in found:
            self.kept[one.key] = one
            self.file.write(msgspec.json.encode(one) + b"\n")
        self.file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.file.close()


def _decoded(lines: Iterable[bytes], kind: Any) -> Iterator[Any]:
    decoder = msgspec.json.Decoder(kind)
    for line in lines:
        try:
            yield decoder.decode(line)
        except msgspec.DecodeError:
            continue  # a run was stopped while it wrote this line


def judged(
    what: str, function: Callable[[Asked], Answer], asked: Sequence[Asked], jobs: int, total: int
) -> Iterator[Answer]:
    """The answers as they come, with one bar on a terminal."""
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True,
    )  # fmt: skip
    with bar, Pool(jobs) as pool:
        row = bar.add_task(what, total=total, completed=total - len(asked))
        for found in pool.imap_unordered(function, asked, chunksize=4):
            bar.advance(row)
            yield found
