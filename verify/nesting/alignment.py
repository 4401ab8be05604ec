"""Lemmas of the nesting theorem about what moves between two phases, and what stays."""

from __future__ import annotations

from collections.abc import Iterator

import z3

from primepar.verify.nesting.language import MEMBERS, Lemma, Member, every
from primepar.verify.primitive.symbol import Term
from primepar.verify.primitive.symbolic import precedes


def alignment() -> Iterator[Lemma]:
    """What stays in both members, what moves in one, what moves in both."""
    yield _stays()
    yield _nearest()
    yield _one_moves()
    yield from _all_move()


def _starts(each: Member, tag: str = "") -> Term:
    return each.has("starts with")(each.device(tag), each.block(tag))


def _ends(each: Member, tag: str = "") -> Term:
    return each.has("ends with")(each.device(tag), each.block(tag))


def _finds(each: Member, tag: str = "") -> Term:
    return each.nearest(each.device(tag), each.block(tag))


def _stays() -> Lemma:
    """Between phases, where nothing moves in either member: for sums this is all there is."""
    given = [every([each.device(), each.block()], _starts(each), _ends(each)) for each in MEMBERS]
    starts, ends = (z3.And([has(each) for each in MEMBERS]) for has in (_starts, _ends))
    sentence = "a phase starts with what the one before it ended with"
    return Lemma("alignment", sentence, tuple(given), z3.Implies(starts, ends))


def _nearest() -> Lemma:
    """Nearest: fewest axes away, then the shortest way round, then in one direction."""
    far = [
        [[z3.Int(f"{name}{tag} of {each.name}") for name in ("axes", "way", "turn")]
         for tag in ("", "'")]
        for each in MEMBERS
    ]  # fmt: skip
    given = [precedes(one, other) for one, other in far]
    pair, other_pair = (
        [outer[0] + inner[0], outer[1] + inner[1], outer[2], inner[2]]
        for outer, inner in zip(*far, strict=True)
    )
    same = [z3.And([a == b for a, b in zip(one, other, strict=True)]) for one, other in far]
    given = [z3.Or(*each) for each in zip(given, same, strict=True)]
    return Lemma(
        "alignment",
        "of pairs of devices that of the nearest is the nearest",
        tuple(given),
        z3.Or(precedes(pair, other_pair), z3.And(same)),
    )


def _one_moves() -> Lemma:
    """Between phases, where something moves in one member only."""
    tags = ("", "'")
    stays, moves = MEMBERS
    here = z3.And(_ends(stays), _finds(stays) == stays.device())
    lacks = [z3.And(_starts(moves, tag), z3.Not(_ends(moves, tag))) for tag in tags]
    all_of = [each(tag) for tag in tags for each in (moves.device, moves.block)]
    one_source = z3.Implies(
        moves.device() == moves.device("'"), _finds(moves) == _finds(moves, "'")
    )
    one_target = z3.Implies(
        _finds(moves) == _finds(moves, "'"), moves.device() == moves.device("'")
    )
    given = (
        every([stays.device(), stays.block()], _starts(stays), here),
        every(all_of, z3.And(lacks), one_source),
        every(all_of, z3.And(lacks), one_target),
    )
    nested_lacks = z3.And([
        z3.And(*(_starts(each, tag) for each in MEMBERS),
               z3.Not(z3.And([_ends(each, tag) for each in MEMBERS])))
        for tag in tags
    ])  # fmt: skip
    same_device = z3.And([each.device() == each.device("'") for each in MEMBERS])
    same_source = z3.And([_finds(each) == _finds(each, "'") for each in MEMBERS])
    sentence = "all that a device lacks comes from one device, which sends to no other"
    return Lemma("alignment", sentence, given, z3.Implies(nested_lacks, same_device == same_source))


def _all_move() -> Iterator[Lemma]:
    """Between phases, where something moves in both members: all of it, and one to one."""
    whole, starts, found, alone, apart, same = [], [], [], [], [], []
    for each in MEMBERS:
        one, other = each.device(), each.device("'")
        starts.append(_starts(each))
        found.append(_finds(each) == each.source(one))
        whole.append(every([one, each.block()], starts[-1], found[-1]))
        alone.append(z3.ForAll([one], each.target(each.source(one)) == one))
        apart.append(each.source(one) == each.source(other))
        same.append(one == other)
    sentence = "all that a device starts with comes from one device"
    then = z3.Implies(z3.And(starts), z3.And(found))
    yield Lemma("alignment", sentence, tuple(whole), then)
    then = z3.Implies(z3.And(apart), z3.And(same))
    yield Lemma("alignment", "no two devices have one source", tuple(alone), then)
