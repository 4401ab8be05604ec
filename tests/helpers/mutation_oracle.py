"""The attacks `mutants` and `programs`: explorer, emulator and proofs decide what is wrong.

The explorer and the emulator decide which mutants are harmful. Every harmful one has to be refuted,
for what fails, and every harmless one proved. On generated programs prover and explorer agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from hashlib import sha256
from itertools import chain, product
from math import prod
from random import Random
from time import perf_counter
from typing import NamedTuple

import msgspec
from agreement import disagreement, refuted
from long_runs import TaskResult
from mutants import mutant
from mutation import PROGRAM_WAYS, Json, changes_of
from mutation_maps import MAP_WAYS
from oracle.explore import explore
from phase_programs import between, built, heads, norm, sums
from phased import everything
from pipeline_cases import small
from pipelined_plans import smallest
from scaled_programs import scaled_program
from step_cases import passed, recomputed, sharded
from stream_k_cases import WITH_FIX_UP

from primepar.errors import PrimeParError
from primepar.partition import PRIMITIVES
from primepar.partition.flux import FluxGather, FluxScatter
from primepar.partition.local_sgd import LocalSGD
from primepar.partition.patrickstar import PatrickStar
from primepar.partition.ring_attention import RingAttention
from primepar.partition.ulysses import Ulysses
from primepar.passes import chunk_transfers, overlap
from primepar.reference.check import check_program
from primepar.schedule import Primitive, Program, Sequence, lower
from primepar.schedule.operators import HOMES, PHASES, Linear
from primepar.schedule.sequence import Element
from primepar.verify.primitive.proof import verify_primitive
from primepar.verify.program import verify_program
from primepar.verify.report import PROPERTIES, Report

STEPS: dict[str, Callable[[], Json]] = {
    "step in rows": lambda: everything(Random(1)),
    "step in blocks": lambda: everything(Random(2)),
    "data-parallel step": lambda: msgspec.to_builtins(passed("data", 2, "llama")),
    "megatron-sp step": lambda: msgspec.to_builtins(passed("megatron-sp", 2, "llama")),
    "sums in one call": sums,
    "stream-k": lambda: msgspec.to_builtins(WITH_FIX_UP.program()),
    "pipeline 1f1b": lambda: msgspec.to_builtins(small("1f1b", 2, 3)),
    "pipeline zbv": lambda: msgspec.to_builtins(small("zbv", 2, 2)),
    "recomputed step": lambda: msgspec.to_builtins(recomputed()),
    "sharded step": lambda: msgspec.to_builtins(sharded()),
    "patrickstar": lambda: msgspec.to_builtins(
        PatrickStar(layers=3, hidden=1, rows=1, chunk=2).program()
    ),
    "local-sgd": lambda: msgspec.to_builtins(
        LocalSGD(workers=3, period=2, steps=5, warm_up=1).program()
    ),
}
"""Programs with phases of their own: small ones, training steps of one layer, and of methods."""
MORE_STEPS: dict[str, Callable[[], Program]] = {
    "flux-gather": FluxGather(devices=2, chunks=2, M=4, N=2, K=2).program,
    "flux-scatter": FluxScatter(devices=3, chunks=1, M=3, N=3, K=3).program,
    "ring-attention": RingAttention(devices=3, positions=3).program,
    "ulysses": Ulysses(devices=3, positions=3, heads=3).program,
    "step of a pipeline": smallest,
    "step in chunks": lambda: overlap(chunk_transfers(passed("megatron-sp", 2, "gpt2"), 2)),
    "norm": lambda: built(norm()),
    "heads": lambda: built(heads()),
    "between": lambda: built(between()),
}
"""Programs that `test_mutants` changes too; `make mutants` does not."""
BASES = {
    **dict.fromkeys(PRIMITIVES, ((2,), (3,))),
    **{name: ((2,),) for name in PRIMITIVES if name.startswith("three")},
    "summa-rectangular": ((1, 2, 2), (2, 1, 2)),
    **{name: ((2, 1, 2), (1, 2, 2)) for name in PRIMITIVES if name.startswith("grid")},
    **dict.fromkeys(("tesseract", "summa-deep", "summa-deep-kept"), ((2, 2), (1, 3))),
    **dict.fromkeys((name for name, kind in PRIMITIVES.items() if kind.virtual), ((2, 2), (3, 2))),
}
"""The meshes whose programs are changed."""
LARGEST, LARGEST_OF_SEVERAL = 27, 12
"""Devices of the largest mesh on which a primitive of one side, or of several, is explored."""
PROOF_SECONDS = 120.0
"""Limit of each proof of a primitive; what comes to it counts as a mistake."""


class Task(NamedTuple):
    """One mutant: `number` counts those, `most` of them at most, of one way and method."""

    method: str
    way: str
    number: int
    most: int


def operator(sequence: Sequence) -> Linear:
    """The operator of a mesh, of another length along each dim where they are cut alike."""
    sizes = {dim: length * count for length, (dim, count) in enumerate(sequence.grid.items(), 2)}
    return Linear(**{**dict.fromkeys("MNK", 2), **sizes})


def operators(primitive: Primitive, sequence: Sequence) -> Iterator[Linear]:
    """What a mesh is explored with: one operator, and long ones where formulas speak of lengths."""
    usual = operator(sequence)
    yield usual
    if primitive.sent(2, 2, 2, *sequence.elements[0].sides) is not None:
        for dim in ("M", "N", "K"):
            yield replace(usual, **{dim: 10 * usual.size(dim)})


@cache
def base(method: str) -> list[Json]:
    """The programs that are changed, as JSON, with all properties asked of them."""
    if method in STEPS:
        return [STEPS[method]()]
    if method in MORE_STEPS:
        return [msgspec.to_builtins(MORE_STEPS[method]())]
    sequences = [Sequence.of(PRIMITIVES[method](), *sides) for sides in BASES[method]]
    return [msgspec.to_builtins(lower(sequence, operator(sequence))) for sequence in sequences]


@cache
def changes(method: str, way: str, most: int) -> list[tuple[str, Program]]:
    """At most `most` different programs that one way makes of a method's; always the same ones."""
    made = [change for fields in base(method) for change in changes_of(way, fields)]
    Random(f"{method} {way}").shuffle(made)
    distinct: dict[bytes, tuple[str, Program]] = {}
    unchanged = {msgspec.json.encode(msgspec.convert(fields, Program)) for fields in base(method)}
    for where, fields in made:
        if len(distinct) == most:
            break
        try:
            program = msgspec.convert(fields, Program)
        except msgspec.ValidationError:
            continue
        text = msgspec.json.encode(program)
        if text not in unchanged:
            distinct.setdefault(text, (where, program))
    return list(distinct.values())


@cache
def map_changes(method: str, way: str, most: int) -> list[tuple[str, Primitive]]:
    """At most `most` different primitives that one way makes of a method."""
    original = PRIMITIVES[method]()
    made = list(MAP_WAYS[way](original))
    Random(f"{method} {way}").shuffle(made)
    distinct, unchanged = dict[str, tuple[str, Primitive]](), digest_of(original)
    for where, primitive in made:
        if len(distinct) == most:
            break
        digest = digest_of(primitive)
        if digest != unchanged or way == "wrong formula":
            distinct.setdefault(digest, (where, primitive))
    return list(distinct.values())


def digest_of(primitive: Primitive) -> str:
    """Equal for primitives that are the same on meshes with sides of 2 and of 3."""
    seen = []
    for side in (2, 3):
        sides = (side,) * len(primitive.side_names)
        element = Element(primitive, sides)
        places = sorted(chain(*element.places.values()))
        for place, step in product(places, range(primitive.steps(*sides))):
            seen += [str(getattr(primitive, phase)(*place, step, *sides)) for phase in PHASES]
        if primitive.home is not None:
            seen += [
                str(primitive.home(tensor, *place, *sides))
                for tensor, place in product(HOMES, places)
            ]
        seen.append(f"{primitive.sent(30, 60, 84, *sides)} {primitive.held(30, 60, 84, *sides)}")
    return sha256("\n".join(seen).encode()).hexdigest()


def tasks(most: int) -> list[Task]:
    """At most `most` mutants of each way and method: of its programs, and one fewer of its map."""
    programs = [
        Task(method, way, number, most)
        for method, way in product((*PRIMITIVES, *STEPS), PROGRAM_WAYS)
        for number in range(len(changes(method, way, most)))
    ]
    maps = [
        Task(method, way, number, most - 1)
        for method, way in product(PRIMITIVES, MAP_WAYS)
        for number in range(len(map_changes(method, way, most - 1)))
    ]
    return maps + programs


def programs(count: int) -> range:
    """The seeds of generated programs."""
    return range(count)


def agree_on(seed: int) -> TaskResult:
    """Have both decide a generated program; each seventh one with sends that return at once.

    Three of ten have scales.
    """
    program, buffered = (scaled_program if seed % 10 < 3 else mutant)(seed), seed % 7 == 0
    report, seen = verify_program(program, buffered=buffered), explore(program, buffered=buffered)
    differ = disagreement(report, seen)
    numbers = {"programs": 1.0, **dict.fromkeys(PROPERTIES, 0), **dict.fromkeys(seen.failed, 1)}
    return TaskResult({"generated": report.verdict}, numbers, bool(differ), differ)


def decide(task: Task) -> TaskResult:
    """Decide one mutant."""
    if task.way in MAP_WAYS:
        primitives = map_changes(task.method, task.way, task.most)
        return _decide_primitive(task, *primitives[task.number])
    return _decide_program(task, *changes(task.method, task.way, task.most)[task.number])


def result(
    task: Task, where: str, failed: set[str], report: Report, split: str, seconds: float, same: str
) -> TaskResult:
    """What was found of a mutant; `split` is where readers differ in what is wrong."""
    harmful, verdict = bool(failed), report.verdict
    is_wrong = verdict != ("refuted" if harmful else "proved") or bool(split)
    numbers = {
        "mutants": 1,
        "harmful": int(harmful), "caught": int(harmful and verdict == "refuted"),
        "harmless": int(not harmful), "refused": int(not harmful and verdict != "proved"),
        "seconds": seconds,
    }  # fmt: skip
    note = f"{where}: {' '.join(sorted(failed)) or 'nothing'} should fail; "
    note += f"{verdict} {' '.join(sorted(refuted(report)))} {split}"
    return TaskResult(
        {"way": task.way, "method": task.method}, numbers, is_wrong, note * is_wrong,
        f"{task.method} {same}",
    )  # fmt: skip


def _decide_program(task: Task, where: str, program: Program) -> TaskResult:
    """Decide a changed program."""
    seen, start = explore(program), perf_counter()
    report = verify_program(program)
    seconds = perf_counter() - start
    split = disagreement(report, seen)
    if not split and _emulates(program) == bool(set(seen.failed) - {"traffic"}):
        split = "emulator"
    same = sha256(msgspec.json.encode(program)).hexdigest()
    return result(task, where, set(seen.failed), report, split, seconds, same)


def _emulates(program: Program) -> bool:
    try:
        return check_program(program).equal
    except PrimeParError:
        return False


def meshes(primitive: Primitive) -> Iterator[Sequence]:
    """Those with short sides on few devices, the smallest first."""
    count = len(primitive.side_names)
    largest = LARGEST if count == 1 else LARGEST_OF_SEVERAL
    sequences = [
        (prod(Element(primitive, sides).axis_lengths), sides)
        for sides in product(range(1, 6), repeat=count)
    ]
    return (
        Sequence.of(primitive, *sides) for ranks, sides in sorted(sequences) if ranks <= largest
    )


def _decide_primitive(task: Task, where: str, primitive: Primitive) -> TaskResult:
    """Decide a changed primitive: on small meshes by the explorer, on all by the proofs.

    In the lowered program a misaligned block is one that a realigning hop sends from where it is
    not, which is placement there.
    """
    start = perf_counter()
    report = verify_primitive(primitive, timeout=PROOF_SECONDS)
    seconds = perf_counter() - start
    names = {result.name for result in report.properties}
    failed = set[str]()
    for sequence in meshes(primitive):
        for linear in operators(primitive, sequence):
            failed |= set(explore(lower(sequence, linear)).failed) & names
        if failed:
            break
    properties = refuted(report)
    meant = failed | {"alignment"} if "placement" in failed else failed
    split = "properties" if failed and properties and not meant & properties else ""
    return result(task, where, failed, report, split, seconds, digest_of(primitive))
