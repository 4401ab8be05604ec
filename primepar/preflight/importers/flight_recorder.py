"""Programs of dumps of torch's flight recorder: what every rank had called when a run hung.

torch writes a dump per rank, `nccl_trace_rank_3` (NCCL, gloo) or JSON, with the last operations of
that rank: its process group, kind, sizes, data types and stack (torch.distributed.flight_recorder
has the analyser of torch; the format here is that of version 2). The program has each of them as
posted, in order, and waits for all of them at the end. So what is refuted is what the dumps show:
a call that some member never made, or made as another one. What is proved is that every recorded
operation has its partners; then the run was slow, or hung elsewhere.

A recorder keeps a limited number of operations. Of a process group only those are taken that come
after the first one that every member still has. Messages have no number that both ends share, so
where a recorder has forgotten some, those that are done are left out.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from primepar.errors import FormatError, TextError
from primepar.reading import json_of, read_bytes
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Instruction,
    IRecv,
    ISend,
    Program,
    Reduce,
    ReduceScatter,
    Wait,
)

FILE = re.compile(r"(\d+)(?:\.json|\.pkl|\.pickle)?$")
"""The end of the name of a dump is its rank."""
KINDS = {
    "all_reduce": "all_reduce", "allreduce_coalesced": "all_reduce", "reduce": "reduce",
    "_reduce_oop": "reduce", "broadcast": "broadcast", "_broadcast_oop": "broadcast",
    "all_gather": "all_gather", "_all_gather_base": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather", "ALLGATHER_coalesced": "all_gather",
    "all_gather_single": "all_gather", "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter", "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "REDUCE_SCATTER_coalesced": "reduce_scatter", "all_to_all": "all_to_all",
    "all_to_all_single": "all_to_all", "barrier": "barrier", "all_reduce_barrier": "barrier",
}  # fmt: skip
"""Name in the recorder -> instruction; `send` and `recv` are messages."""
DONE = "completed"


class RecordedEntry(msgspec.Struct):
    """One operation of a rank, with the fields that are used."""

    record_id: int
    profiling_name: str
    """`nccl:all_reduce`, `nccl:send 0->1`."""
    process_group: tuple[str, str]
    """Name and description."""
    state: str
    collective_seq_id: int = 0
    input_sizes: list[list[int]] = []
    output_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    frames: list[dict[str, Any]] = []

    @property
    def kind(self) -> str:
        """Its name without the backend, `all_reduce`, `send`, `coalesced`."""
        return self.profiling_name.rpartition(":")[2].split(" ")[0]

    @property
    def source(self) -> str | None:
        """The innermost line that is not torch's."""
        for frame in self.frames:
            if "/torch/" not in str(frame.get("filename")):
                return f"{frame.get('filename')}:{frame.get('line')}"
        return None


class RankDump(msgspec.Struct):
    """The dump of one rank."""

    entries: list[RecordedEntry]
    pg_config: dict[str, dict[str, Any]] = {}
    version: str = ""

    def members(self, entry: RecordedEntry, ranks: int) -> tuple[int, ...]:
        """The ranks of an entry's group; all of them where the dump does not name the group."""
        config = self.pg_config.get(entry.process_group[0], {})
        given = config.get("ranks") or list(range(ranks))
        return tuple(json.loads(given) if isinstance(given, str) else given)


class _Builtins(pickle.Unpickler):
    """Reads numbers, texts, lists and maps; a dump has nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse every class and function."""
        raise pickle.UnpicklingError(f"{module}.{name}, which no dump has")


def flight_recorder_program(folder: Path) -> Program:
    """Return the program that the dumps of a folder show.

    Raises `FormatError` for a folder without a dump of each rank, and for a file that is none.
    """
    dumps = dict(_dumps(folder))
    ranks = 1 + max(dumps, default=-1)
    missing = [rank for rank in range(ranks) if rank not in dumps]
    if missing or not dumps:
        lacks = f"none of rank {missing[0]}" if missing else "none"
        raise FormatError(
            f"{folder}: expected a dump of every rank, such as nccl_trace_rank_0, got {lacks}"
        )
    try:
        starts = _starts(dumps, ranks)
        programs = [tuple(_rank(rank, dumps[rank], ranks, starts)) for rank in range(ranks)]
        return Program("primepar-program", 1, ranks, tuple(programs))
    except (ValueError, TypeError, LookupError) as error:
        reason = " ".join(str(error).split())
        raise FormatError(f"{folder}: expected dumps that name their ranks, got {reason}") from None


def _dumps(folder: Path) -> Iterator[tuple[int, RankDump]]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        name = FILE.search(path.name)
        if name is None or not path.is_file():
            continue
        try:
            content = read_bytes(path)
            is_json = content[:1] in b"{ \n"
            dump = json_of(content, dict[str, Any]) if is_json else _unpickled(content)
            yield int(name[1]), msgspec.convert(dump, RankDump, strict=False)
        except (OSError, ValueError, TextError, msgspec.ValidationError) as error:
            reason = " ".join(str(error).split())
            raise FormatError(
                f"{path}: expected a dump of the flight recorder, got {reason}"
            ) from None


def _unpickled(content: bytes) -> Any:
    try:
        return _Builtins(io.BytesIO(content)).load()
    except Exception as error:  # a broken pickle raises whatever its bytes ask for
        raise ValueError(f"a pickle with {error}" if str(error) else "a broken pickle") from None


def _starts(dumps: Mapping[int, RankDump], ranks: int) -> dict[tuple[int, ...], int]:
    """Members of a group -> the first call that all of its recorders that have any still have."""
    starts: dict[tuple[int, ...], int] = {}
    for dump in dumps.values():
        first: dict[tuple[int, ...], int] = {}
        for entry in dump.entries:
            if entry.kind in KINDS:
                first.setdefault(dump.members(entry, ranks), entry.collective_seq_id)
        for members, number in first.items():
            starts[members] = max(number, starts.get(members, 0))
    return starts


def _rank(
    rank: int, dump: RankDump, ranks: int, starts: Mapping[tuple[int, ...], int]
) -> Iterator[Instruction]:
    entries = sorted(dump.entries, key=lambda entry: entry.record_id)
    forgets = bool(entries) and entries[0].record_id > 0
    waits = []
    for entry in entries:
        members, request = dump.members(entry, ranks), f"r{entry.record_id}"
        if entry.kind in ("send", "recv"):
            if forgets and entry.state == DONE:
                continue
            yield _message(entry, members, request)
        elif entry.kind in KINDS and entry.collective_seq_id >= starts[members]:
            yield _call(entry, members, request, members.index(rank) if rank in members else 0)
        else:
            continue
        waits.append(Wait(request, source=entry.source))
    yield from waits


def _message(entry: RecordedEntry, members: tuple[int, ...], request: str) -> Instruction:
    sends = entry.kind == "send"
    peer = int(re.split("->|<-", entry.profiling_name)[1])
    sizes = entry.input_sizes if sends else entry.output_sizes
    return (ISend if sends else IRecv)(
        members[peer], f"{entry.kind}{entry.record_id}", communicator=entry.process_group[0],
        request=request, source=entry.source, count=prod(sizes[0]) if sizes else None,
    )  # fmt: skip


def _call(entry: RecordedEntry, members: tuple[int, ...], request: str, place: int) -> Instruction:
    """A collective; the recorder does not keep roots, so that all have the first member's."""
    kind, name = KINDS[entry.kind], f"{entry.kind}{entry.record_id}"
    pieces = tuple(f"{name}.{member}" for member in members)
    results = tuple(f"{name}.into.{member}" for member in members)
    sizes = entry.output_sizes if kind == "reduce_scatter" else entry.input_sizes
    given: dict[str, Any] = {
        "group": members, "communicator": entry.process_group[0], "request": request,
        "source": entry.source,
    }  # fmt: skip
    if kind not in ("barrier", "all_to_all"):
        given["count"] = sum(map(prod, sizes)) if sizes else None
        given["dtype"] = entry.input_dtypes[0] if entry.input_dtypes else None
    match kind:
        case "barrier":
            return Barrier(**given)
        case "all_gather":
            return AllGather(block=name, blocks=pieces, **given)
        case "reduce_scatter":
            return ReduceScatter(block=name, blocks=pieces, **given)
        case "all_to_all":
            return AllToAll(blocks=pieces, into=results, **given)
        case "all_reduce":
            return AllReduce(block=name, **given)
        case _:
            rooted = Broadcast if kind == "broadcast" else Reduce
            return rooted(block=name, root=members[0], **given)
