"""The one runner of all benchmarks: options, rounds, rows that are stored and resumed, one table.

A benchmark is one file: a header with its question and how it is measured, and a function that
yields cases. A case has a name, and measures one row or several when it is called:

    class SumRow(BenchRow, frozen=True):
        hops: Annotated[int, Column("hops")]
        bfloat16: Annotated[float, Column("sum in bfloat16", ".2f")]

    def half_precision(size: int = 512) -> Iterator[Case]:
        for hops in (1, 2, 4):
            yield f"{hops} hops", partial(measure, hops, size)

    if __name__ == "__main__":
        bench(half_precision)

Parameters of the function are options: `python -m benchmarks half_precision --size 256`. All
benchmarks have `--json`, and `--out FILE`, which has each row as soon as it is measured: the same
command goes on from there. With `--rounds N` all cases are measured in turn, N times, and the
median of each time counts; a case that takes longer than `CHEAP` seconds is measured once.
"""

from __future__ import annotations

import inspect
import os
import platform
import resource
import sys
import time
from argparse import ArgumentParser, BooleanOptionalAction
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar, Union, get_type_hints

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from primepar.commands.amounts import aligned
from primepar.commands.progress import progress
from primepar.errors import PrimeParError
from primepar.files import write_text

Cells: TypeAlias = Mapping[str, object]
"""Head of a column -> what a row has there."""
CHEAP = 1.0
"""Seconds; a case that takes longer is in one round only."""
IDLE = 0.05
"""Share of the CPU that may go elsewhere on a machine that counts as idle."""


class Column(NamedTuple):
    """The column of a field, or of a property by its return type: head, format, and a factor.

    The format of several numbers is what separates them.
    """

    head: str
    form: str = ""
    times: float = 1

    def cell(self, value: Any) -> str:
        """The text of a value; that of None is empty."""
        if isinstance(value, tuple):
            return self.form.join(map(str, value))
        value = value if self.times == 1 or value is None else self.times * value
        return "" if value is None else f"{value:{self.form}}"


@cache
def columns(kind: type) -> dict[str, Column]:
    """Name of an attribute -> its column: fields in their order, then properties."""
    hints = get_type_hints(kind, include_extras=True)
    for name, member in vars(kind).items():
        if isinstance(member, property):
            hints[name] = get_type_hints(member.fget, include_extras=True).get("return")
    return {
        name: mark for name, hint in hints.items() for mark in getattr(hint, "__metadata__", ())
    }


class BenchRow(Struct, frozen=True, tag=True):
    """What one case measured; rows of one class and title are one table."""

    timed: ClassVar[tuple[str, ...]] = ()
    """Fields that are seconds, of which the median over rounds counts; the first is the whole."""

    @property
    def cells(self) -> Cells:
        """The line of the table: its columns, unless a class has other cells."""
        return {mark.head: mark.cell(getattr(self, name))
                for name, mark in columns(type(self)).items()}  # fmt: skip

    @property
    def title(self) -> str:
        """What is printed above its table."""
        return ""

    @property
    def code(self) -> int:
        """The exit code of a run with this row, if none has a larger one."""
        return 0

    @classmethod
    def notes(cls, rows: Sequence[Any]) -> Iterable[str]:
        """Lines below a table."""
        return ()


Case: TypeAlias = tuple[str, Callable[[], BenchRow | Iterable[BenchRow]]]
RowType = TypeVar("RowType")


class MachineLoad(Struct, frozen=True):
    """What the machine did during a run; seconds of CPU are summed over cores."""

    date: str
    machine: str
    versions: dict[str, str]
    cores: int
    seconds: float
    busy: float
    used: float
    load_before: float

    @property
    def elsewhere(self) -> float:
        """Share of the machine's CPU time that went to other processes, or was stolen."""
        return max(0.0, self.busy - self.used) / (self.seconds * self.cores)

    @property
    def idle(self) -> bool:
        """Whether nothing else of weight ran."""
        return self.elsewhere <= IDLE

    def __str__(self) -> str:
        names = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return (
            f"{self.date}, {self.machine}, {names}; {'idle' if self.idle else 'loaded'} "
            f"({self.elsewhere:.0%} of the CPU went elsewhere), load average "
            f"{self.load_before:.1f} at the start"
        )


class BenchRun(Struct, Generic[RowType]):
    """A run as it is stored: its options, the machine, and the rows of each case by round."""

    options: dict[str, Any]
    load: MachineLoad | None = None
    rows: dict[str, list[list[RowType]]] = {}

    @property
    def measured(self) -> list[RowType]:
        """The rows of all cases."""
        return [row for rounds in self.rows.values() for row in _medians(rounds)]


def load_run(path: Path, *kinds: type[RowType]) -> BenchRun[RowType]:
    """Read a stored run whose rows are of these kinds."""
    union: Any = Union[kinds]  # noqa: UP007
    run: BenchRun[RowType] = msgspec.json.decode(path.read_bytes(), type=BenchRun[union])
    return run


def bench(
    cases: Callable[..., Iterable[Case]],
    rounds: int | None = None,
    pictures: Callable[[BenchRun[Any]], Mapping[str, str]] | None = None,
) -> None:
    """Measure all cases, and print their rows; ends with the largest exit code of a row.

    `rounds` is the number of rounds unless another is asked for; None where a case counts for
    itself. `pictures` returns the text of each picture by its name, for `--pictures FOLDER`.
    """
    header = inspect.getdoc(inspect.getmodule(cases)) or ""
    parser = ArgumentParser(
        f"python -m benchmarks {cases.__name__}", description=header.partition("\n")[0]
    )
    for name, parameter in inspect.signature(cases).parameters.items():
        _add(parser, name.replace("_", "-"), parameter.default)
    if rounds:
        parser.add_argument("--rounds", type=int, default=rounds, metavar="N")
    if pictures:
        parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="draw them there")
    parser.add_argument("--out", type=Path, metavar="FILE", help="store rows, and go on from them")
    parser.add_argument("--json", action="store_true", help="print the run as JSON")
    asked = vars(parser.parse_args())
    out, json, folder = asked.pop("out"), asked.pop("json"), asked.pop("pictures", None)
    turns = asked.pop("rounds") if rounds else 1
    try:
        if turns < 1:
            raise ValueError(f"--rounds: expected 1 or more, got {turns}")
        if folder and not folder.is_dir():
            raise ValueError(f"--pictures: expected a folder that is there, got {folder}")
        run = _resumed(out, msgspec.json.decode(msgspec.json.encode(asked)), cases)
        rows = measured(cases(**asked), turns, run, out)
    except (PrimeParError, ValueError, OSError) as error:
        parser.error(str(error))
    for name, picture in (pictures(run) if pictures and folder else {}).items():
        write_text(folder / name, picture)
    print(msgspec.json.encode(run).decode() if json else text(rows))
    sys.exit(max((row.code for row in rows), default=0))


def _add(parser: ArgumentParser, name: str, default: Any) -> None:
    """Add the option of a parameter, of the kind of its default; several numbers as `4,8,16`."""
    if isinstance(default, bool):
        parser.add_argument(f"--{name}", default=default, action=BooleanOptionalAction)
    elif isinstance(default, tuple):
        kind = type(default[0]) if default else str
        parser.add_argument(f"--{name}", default=default, metavar=f"{kind.__name__},...",
                            type=lambda words: tuple(map(kind, words.split(","))))  # fmt: skip
    else:
        kind = type(default)
        parser.add_argument(f"--{name}", default=default, metavar=kind.__name__, type=kind)


def _resumed(
    out: Path | None, options: dict[str, Any], cases: Callable[..., Iterable[Case]]
) -> BenchRun[BenchRow]:
    """The run that is stored in `out`, or a new one. Raises `ValueError` for other options."""
    if out is None or not out.exists():
        return BenchRun(options)
    module = cases.__module__
    kinds = [kind for kind in BenchRow.__subclasses__() if kind.__module__ == module]
    run = load_run(out, *kinds)
    if run.options != options:
        raise ValueError(
            f"--out: expected a run with {options}, got {run.options} in {out}: name another file"
        )
    return run


def measured(
    cases: Iterable[Case], turns: int, run: BenchRun[Any], out: Path | None = None
) -> list[Any]:
    """Measure in rounds what the run does not have yet, and store it after each case."""
    clock, cases = LoadClock(), list(cases)
    with progress(len(cases) * turns) as tick:
        for turn in range(turns):
            for name, measure in cases:
                tick(name)
                taken = run.rows.setdefault(name, [])
                if len(taken) > turn or (taken and _seconds(taken[0]) >= CHEAP):
                    continue
                rows = measure()
                taken.append([rows] if isinstance(rows, BenchRow) else list(rows))
                run.load = clock.stop()
                if out:
                    out.parent.mkdir(parents=True, exist_ok=True)
                    write_text(out, msgspec.json.format(msgspec.json.encode(run)).decode())
    return run.measured


def _seconds(rows: Sequence[BenchRow]) -> float:
    return float(sum(getattr(row, row.timed[0]) for row in rows if row.timed))


def _medians(rounds: Sequence[Sequence[RowType]]) -> Iterator[RowType]:
    """The rows of the first round, with the median over all rounds of what is timed."""
    for several in zip(*rounds, strict=True):
        first: Any = several[0]
        known = {name: [value for row in several if (value := getattr(row, name)) is not None]
                 for name in first.timed}  # fmt: skip
        yield replace(first, **{name: median(some) for name, some in known.items() if some})


def text(rows: Iterable[BenchRow]) -> str:
    """Rows as tables in plain text."""
    parts = []
    for (kind, title), group in groupby(rows, key=lambda row: (type(row), row.title)):
        some = list(group)
        parts.append("\n".join([*([title] if title else []), *in_columns(_lines(some)),
                                *kind.notes(some)]))  # fmt: skip
    return "\n\n".join(parts)


def markdown(rows: Sequence[BenchRow]) -> str:
    """Rows of one kind as a table in Markdown, their numbers at the right."""
    lines = _lines(rows)
    return page_table(lines[0], lines[1:])


def page_table(heads: Iterable[str], rows: Iterable[Iterable[str]], align: str = "--:") -> str:
    """A table in Markdown, the first column at the left."""
    heads = list(heads)
    lines = [heads, ["---", *[align] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _lines(rows: Sequence[BenchRow]) -> list[list[str]]:
    return [list(rows[0].cells), *([str(cell) for cell in row.cells.values()] for row in rows)]


def in_columns(lines: Sequence[Sequence[str]]) -> list[str]:
    """Columns in equal width: the first one, and those without digits, at the left."""
    columns = enumerate(zip(*lines, strict=True))
    return aligned(lines, {place for place, (_, *cells) in columns
                           if not place or not any(map(str.isdigit, "".join(cells)))})  # fmt: skip


OF_RANKS: list[float] = []
"""CPU seconds of the ranks of each world that has ended, which are no children of this process."""


def cpu_seconds() -> float:
    """User and system time of this process and of those that it started and that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(OF_RANKS, sum(usage.ru_utime + usage.ru_stime for usage in usages))


def peak_mib() -> float:
    """Peak memory of this process; Linux reports it in KiB, macOS in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


class LoadClock:
    """Reads /proc/stat at the start and at the end of a run; where there is none, nothing."""

    def __init__(self) -> None:
        self.begin, self.used, self.busy = time.monotonic(), cpu_seconds(), _busy_now()
        self.load_before = os.getloadavg()[0]

    def stop(self) -> MachineLoad:
        """The load since the start."""
        versions = {name: version(name) for name in ("primepar", "torch")}
        return MachineLoad(
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            machine=f"{_processor()}, {os.cpu_count()} cores, Linux {platform.release()}",
            versions={"python": platform.python_version(), **versions},
            cores=os.cpu_count() or 1,
            seconds=time.monotonic() - self.begin,
            busy=_busy_now() - self.busy,
            used=cpu_seconds() - self.used,
            load_before=self.load_before,
        )


def busy_seconds(stat: str) -> float:
    """CPU seconds of all cores that were not idle, by the first line of /proc/stat.

    Its fields: user, nice, system, idle, iowait, irq, softirq, steal; guests are in them already.
    """
    user, nice, system, _, _, *others = map(int, stat.split("\n")[0].split()[1:9])
    return float(user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")


def _busy_now() -> float:
    path = Path("/proc/stat")
    return busy_seconds(path.read_text(encoding="ascii")) if path.exists() else 0.0


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
