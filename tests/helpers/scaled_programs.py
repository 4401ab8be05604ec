"""Generated programs with scales: right ones, and ones with a changed scale or another change."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import chain
from random import Random
from typing import Any

import msgspec
from mutants import MUTATIONS, lowered
from noise import noise
from phased import phased

from primepar.errors import ProgramError
from primepar.schedule import Program
from primepar.schedule.program_file import check_blocks

Json = dict[str, Any]
SCALES = ("1/2", "1/3", "2/3", "3", "1/64", "5/7")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")


def scaled_program(seed: int) -> Program:
    """A program of seed's kind, with scales that belong there, and mostly with some changes."""
    random, make = Random(f"scale {seed}"), (lowered, phased, noise)[seed % 3]
    while True:
        fields = make(random)
        for _ in range(random.choice((1, 1, 2, 3))):
            random.choice(RIGHT)(random, fields)
        for _ in range(random.choice((0, 0, 1, 1, 2))):
            change = random.choice((wrong_scale, wrong_scale, random.choice(MUTATIONS)))
            change(random, fields)
        try:
            program = msgspec.convert(fields, Program)
            check_blocks(program)
        except (msgspec.ValidationError, ProgramError):
            continue
        if has_scales(fields):
            return program


def has_scales(fields: Json) -> bool:
    """Whether a signature or an instruction has a scale other than 1."""
    entries = [*(fields.get("phases") or {}).values(), *chain.from_iterable(fields["programs"])]
    return any(entry.get("scale", "1") != "1" for entry in entries)


def times(entry: Json, scale: str | Fraction) -> None:
    """Multiply the scale of an instruction or a signature."""
    entry["scale"] = str(Fraction(entry.get("scale", "1")) * Fraction(scale))


def _phase(random: Random, fields: Json) -> str | None:
    """A phase with a signature, that is a sum."""
    phases = fields.get("phases") or {}
    sums = [name for name in phases if phases[name].get("reduction", "sum") == "sum"]
    return random.choice(sums) if sums else None


def _own(fields: Json, rank: int, index: int) -> Json:
    """An instruction as a dict of its own, as ranks may share one."""
    nodes = fields["programs"][rank]
    nodes[index] = dict(nodes[index])
    node: Json = nodes[index]
    return node


def _nodes(fields: Json) -> list[Json]:
    """All instructions, each a dict of its own."""
    return [
        _own(fields, rank, index)
        for rank, nodes in enumerate(fields["programs"])
        for index in range(len(nodes))
    ]


def on_products(random: Random, fields: Json) -> None:
    """A phase requires a scale, and each of its products has it."""
    phase, scale = _phase(random, fields), random.choice(SCALES)
    if phase is not None:
        fields["phases"][phase] = dict(fields["phases"][phase])
        times(fields["phases"][phase], scale)
        for node in _nodes(fields):
            if node.get("phase") == phase:
                times(node, scale)


def on_reductions(random: Random, fields: Json) -> None:
    """A phase requires a scale, and every reduction of its tensor has it."""
    phase, scale = _phase(random, fields), random.choice(SCALES)
    if phase is None:
        return
    tensor, tensors = fields["phases"][phase]["writes"].partition("[")[0], fields.get("tensors", {})
    cuts = {name for name, known in tensors.items() if known.get("of") == tensor} | {tensor}
    nodes = [node for node in _nodes(fields) if node["op"] in REDUCING]
    nodes = [node for node in nodes if node["block"].partition("[")[0] in cuts]
    if nodes:
        fields["phases"][phase] = dict(fields["phases"][phase])
        times(fields["phases"][phase], scale)
        for node in nodes:
            times(node, scale)


def undone(random: Random, fields: Json) -> None:
    """Products of a linear phase are scaled, and the reductions of its output are scaled back."""
    phase, scale = random.choice(("forward", "backward", "gradient")), random.choice(SCALES)
    tensor = {"forward": "O", "backward": "dI", "gradient": "dW"}[phase]
    nodes = _nodes(fields)
    calls = [node for node in nodes if node["op"] in REDUCING]
    calls = [node for node in calls if node["block"].partition("[")[0] == tensor]
    for node in nodes:
        if calls and node.get("phase") == phase:
            times(node, scale)
    for node in calls:
        times(node, 1 / Fraction(scale))


def averaged(random: Random, fields: Json) -> None:
    """Ranks that end with one block average it; a rank may also end with a mean of itself."""
    holders: dict[str, list[int]] = {}
    for rank, blocks in enumerate(fields.get("final") or ()):
        for block in dict.fromkeys(blocks):
            holders.setdefault(block, []).append(rank)
    if holders:
        block = random.choice(sorted(holders))
        group = holders[block]
        call = {"op": "all_reduce", "group": group, "block": block}
        times(call, Fraction(1, len(group)))
        for rank in group:
            fields["programs"][rank].append(call)


def in_two_halves(random: Random, fields: Json) -> None:
    """An addition is made as two, of one half each."""
    for nodes in fields["programs"]:
        for index, node in enumerate(nodes):
            if node["op"] == "compute" and "phase" not in node:
                half = dict(node)
                times(half, "1/2")
                nodes[index : index + 1] = [half, dict(half)]
                return


def wrong_scale(random: Random, fields: Json) -> None:
    """Another scale on an instruction, on equal ones of all ranks, or in a signature; or none."""
    able = [node for node in _nodes(fields) if node["op"] in ("compute", *REDUCING)]
    phase = _phase(random, fields)
    if phase is not None and random.random() < 0.3:
        entries = [fields["phases"][phase]]
    elif able:
        chosen = random.choice([node for node in able if "scale" in node] or able)
        alike = [node for node in able if node == chosen]
        entries = alike if chosen["op"] != "compute" and random.random() < 0.8 else [chosen]
    else:
        return
    changed = random.choice((*SCALES, None))
    for entry in entries:
        entry.pop("scale", None)
        if changed is not None:
            entry["scale"] = changed


RIGHT: tuple[Callable[[Random, Json], None], ...] = (
    on_products, on_products, on_reductions, undone, averaged, in_two_halves,
)  # fmt: skip
