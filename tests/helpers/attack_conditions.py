"""Conditions and bijections as text, with thresholds, for changes of a method."""

from __future__ import annotations

from random import Random

Variable = tuple[str, str]
"""A name and its length: it counts from 0, and ends below that side or number."""


def condition(random: Random, sides: tuple[str, ...], known: tuple[Variable, ...] = ()) -> str:
    """A condition on the sides, and on variables that are known there."""
    one = _comparison(random, sides, known)
    match random.randrange(8):
        case 0 | 1:
            return f"~({one})"
        case 2:
            return f"({one}) & ({_comparison(random, sides, known)})"
        case 3:
            return f"({one}) | ({_comparison(random, sides, known)})"
        case 4:
            other = _comparison(random, sides, known)
            return random.choice((f"~(({one}) | ({other}))", f"({one}) & ~({other})"))
    return one


def _comparison(random: Random, sides: tuple[str, ...], known: tuple[Variable, ...]) -> str:
    number = random.choice((1, 1, 2, 2, 3, 3, 4, 5))
    side = random.choice(sides)
    of_sides = [
        f"{side} > {number}", f"{side} >= {number}", f"{side} < {number}", f"{side} == {number}",
        f"{side} % 2 == {number % 2}", f"{side} % 3 == {number % 3}", f"{side} % 3 == 0",
    ]  # fmt: skip
    if len(sides) > 1:
        one, other = random.sample(sides, 2)
        of_sides += [f"{one} > {other}", f"{one} == {other}"]
    if not known or random.random() < 0.4:
        return random.choice(of_sides)
    name, length = random.choice(known)
    near = random.choice((0, 1, 2))
    like = [other for other, its in known if its == length and other != name]
    return random.choice((
        f"{name} > {near}", f"{name} >= {near + 1}", f"{name} == {near}", f"{name} % 2 == 0",
        f"{name} == {length} - {near + 1}", f"{name} < {length} - {near + 1}",
        f"{name} < {random.choice(like)}" if like else f"{name} < 2",
    ))  # fmt: skip


def bijection(
    random: Random, name: str, length: str, sides: tuple[str, ...], known: tuple[Variable, ...] = ()
) -> str:
    """A bijection of the numbers below a length, which may depend on what is known."""
    number = random.choice((1, 1, 2, 3))
    terms = [
        f"({name} + {number}) % {length}",
        f"({name} - {number}) % {length}",
        f"{length} - 1 - {name}",
        f"where({name} >= {number}, {length} - 1 + {number} - {name}, {name})",
        f"where({name} == 0, {length} - 1, where({name} == {length} - 1, 0, {name}))",
        f"where({name} > 0, {length} - {name}, {name})",
        f"({name} + where({condition(random, sides, known)}, {number}, 0)) % {length}",
    ]
    like = [other for other, its in known if its == length]
    if like:
        other = random.choice(like)
        terms += [f"({name} + {other}) % {length}", f"({name} - {other}) % {length}"]
    one = random.choice(terms)
    if random.random() < 0.6:
        return _chosen(random, condition(random, sides, known), one, name)
    return one


def tail(random: Random, name: str, length: str, sides: tuple[str, ...]) -> str:
    """The numbers from some number on, 1 or more, the other way round: 0 stays."""
    number = random.choice((1, 1, 2, 3))
    turned = f"where({name} >= {number}, {length} - 1 + {number} - {name}, {name})"
    if random.random() < 0.6:
        return _chosen(random, condition(random, sides), turned, name)
    return turned


def _chosen(random: Random, condition_: str, one: str, other: str) -> str:
    """One or the other by a condition, either way round."""
    if random.random() < 0.5:
        one, other = other, one
    return f"where({condition_}, {one}, {other})"
