"""Changes of a method: those that keep it right, and those that seldom do.

A right one gives devices, slices or steps other names: a bijection of the devices in all maps
alike, of the slices of a digit wherever it is named, of the steps of a phase. Where tensors have
homes, every phase and every home may have a bijection of its own, and that of the devices may
differ from step to step.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from random import Random

from attack_conditions import Variable, bijection, condition, tail
from attack_methods import HOMES, METHODS, PHASES, SWITCHED, Body, Draft

Change = Callable[[Draft, Random], bool]
"""Changes a draft in place; gives whether there was something to change."""


def some_bodies(draft: Draft, random: Random) -> list[str]:
    """All bodies, or some of those that may differ from others."""
    names = list(draft.bodies)
    if not draft.has_homes or random.random() < 0.4:
        return names
    return random.sample(names, random.randint(1, len(names) - 1))


def devices(draft: Draft, random: Random) -> bool:
    """Another device does the work of each."""
    names = some_bodies(draft, random)
    axes = list(draft.axes.items())
    like = [
        (one, other)
        for one, its_side in axes
        for other, side in axes
        if its_side == side and one < other
    ]
    if like and random.random() < 0.25:
        one, other = random.choice(like)
        line = _exchange(random, one, other, draft.sides)
    else:
        name, length = random.choice(axes)
        known = [axis for axis in axes if axis[0] != name]
        if draft.has_homes and set(names) <= set(PHASES) and random.random() < 0.4:
            known.append(("t", draft.steps))
        line = f"{name} = {bijection(random, name, length, draft.sides, tuple(known))}"
    for other_name in names:
        draft.bodies[other_name].lines.insert(0, line)
    return True


def _exchange(random: Random, one: str, other: str, sides: tuple[str, ...]) -> str:
    if random.random() < 0.4:
        return f"{one}, {other} = {other}, {one}"
    asked = condition(random, sides)
    return f"{one}, {other} = where({asked}, {one}, {other}), where({asked}, {other}, {one})"


def slices(draft: Draft, random: Random) -> bool:
    """The slices of one digit have other numbers."""
    dim = random.choice(list(draft.lengths))
    place = random.randrange(len(draft.lengths[dim]))
    length, name = draft.lengths[dim][place], f"{dim.lower()}{place}"
    changed = bijection(random, name, length, draft.sides)
    names = some_bodies(draft, random)
    has_changed = False
    for other_name in names:
        body = draft.bodies[other_name]
        if place < len(body.slices.get(dim, ())) and body.slices[dim][place] != "ANY":
            _assign(body, dim, place, changed)
            has_changed = True
    return has_changed


def _assign(body: Body, dim: str, place: int, expression: str) -> None:
    """Give a digit a name, unless it has one, and change its value."""
    name = f"{dim.lower()}{place}"
    if body.slices[dim][place] != name:
        body.lines.append(f"{name} = {body.slices[dim][place]}")
        body.slices[dim][place] = name
    body.lines.append(f"{name} = {expression}")


def steps(draft: Draft, random: Random) -> bool:
    """The steps of a phase come in another order; the first stays where there are no homes."""
    if draft.steps == "1" or not draft.any_order:
        return False
    if draft.has_homes:
        order = bijection(random, "t", draft.steps, draft.sides, tuple(draft.axes.items()))
    else:
        order = tail(random, "t", draft.steps, draft.sides)
    draft.bodies[random.choice(draft.any_order)].lines.insert(0, f"t = {order}")
    return True


def open_digits(draft: Draft, random: Random) -> bool:
    """A digit that is left open at the end is written out."""
    places = [
        (body, dim)
        for body in draft.bodies.values()
        for dim, digits in body.slices.items()
        if len(digits) < len(draft.lengths[dim])
    ]
    if not places:
        return False
    body, dim = random.choice(places)
    body.slices[dim].append("ANY")
    return True


def kept(draft: Draft, random: Random) -> bool:
    """Copies are kept, or are no more."""
    if not draft.has_homes:
        return False
    draft.keeps = random.choice(((), ("I",), ("W",), ("I", "W")))
    return True


def switched(draft: Draft, random: Random) -> bool:
    """Two right methods, chosen by a threshold; of a draft that is not changed yet."""
    group = next((group for group in SWITCHED if draft.method in group), ())
    if not group or any(body.lines for body in draft.bodies.values()):
        return False
    others = [method for method in group if method != draft.method]
    other = METHODS[random.choice(others)] if others else _turned(random)
    asked = condition(random, draft.sides)
    for name, body in draft.bodies.items():
        for dim, digits in body.slices.items():
            one, two = digits[0], other.bodies[name].slices[dim][0]
            digits[0] = one if one == two else f"where({asked}, {one}, {two})"
    draft.method = f"{draft.method} or {other.method}"
    draft.any_order = tuple(set(draft.any_order) & set(other.any_order))
    return True


def _turned(random: Random) -> Draft:
    """PrimePar on other devices, without lines of its own."""
    turned = deepcopy(METHODS["primepar"])
    r, c = random.choice((("c", "r"), ("(s - 1 - r)", "c"), ("c", "(s - 1 - r)"), ("(r + 1)", "c")))
    for body in turned.bodies.values():
        for digits in body.slices.values():
            digits[0] = re.sub(r"\b[rc]\b", lambda m: r if m[0] == "r" else c, digits[0])
            digits[0] = digits[0] if digits[0].endswith("% s") else f"{digits[0]} % s"
    return turned


RIGHT: dict[str, Change] = {
    "devices": devices,
    "slices": slices,
    "steps": steps,
    "open digits": open_digits,
    "kept copies": kept,
}
"""What keeps a method right, in any order; `switched` comes first."""


# Changes that seldom keep it right


def _places(draft: Draft) -> list[tuple[str, str, int]]:
    """Every digit that some body gives."""
    return [(name, dim, place) for name, body in draft.bodies.items()
            for dim, digits in body.slices.items() for place in range(len(digits))]  # fmt: skip


def known_in(draft: Draft, name: str) -> tuple[Variable, ...]:
    """The variables of a body."""
    axes = tuple(draft.axes.items())
    return axes if name in HOMES else (*axes, ("t", draft.steps))


def token(draft: Draft, random: Random) -> bool:
    """One number, name or sign of a digit is another, everywhere or from a threshold on."""
    name, dim, place = random.choice(_places(draft))
    digits, known = draft.bodies[name].slices[dim], known_in(draft, name)
    wrong = another(random, digits[place], known)
    if wrong == digits[place]:
        return False
    if random.random() < 0.6:
        asked = condition(random, draft.sides, known if random.random() < 0.3 else ())
        wrong = f"where({asked}, {wrong}, {digits[place]})"
    digits[place] = wrong
    return True


def another(random: Random, text: str, known: tuple[Variable, ...]) -> str:
    """An expression with one token exchanged."""
    tokens = list(re.finditer(r"\b\d+\b|\b[a-z]\b|[+-]|>=|==|>|<", text))
    token = random.choice(tokens) if tokens else None
    if token is None or random.random() < 0.15:
        return random.choice(("0", *(name for name, _ in known)))
    old, names = token[0], [name for name, _ in known]
    if old.isdigit():
        new = str(abs(int(old) + random.choice((-1, 1))))
    elif old in "+-":
        new = "-" if old == "+" else "+"
    elif old in names:
        new = random.choice(names)
    else:
        new = {">=": ">", ">": ">=", "==": ">=", "<": "<="}.get(old, old)
    return text[: token.start()] + new + text[token.end() :]


def line(draft: Draft, random: Random) -> bool:
    """One token of an assignment is another, or one body alone loses or gains an assignment."""
    names = [name for name, body in draft.bodies.items() if body.lines]
    if not names:
        return False
    name = random.choice(names)
    lines, index = draft.bodies[name].lines, 0
    index = random.randrange(len(lines))
    left, right = lines[index].split(" = ", 1)
    if "," in left or random.random() < 0.3:
        if "0" in left:
            return False
        del lines[index]
    else:
        lines[index] = f"{left} = {another(random, right, known_in(draft, name))}"
    return True


def alone(draft: Draft, random: Random) -> bool:
    """The devices or the steps of one body alone are others; right where it moves nothing."""
    name = random.choice(list(draft.bodies))
    known = known_in(draft, name)
    changed, length = random.choice(known)
    if length == "1":
        return False
    rest = tuple(pair for pair in known if pair[0] != changed)
    text = bijection(random, changed, length, draft.sides, rest)
    draft.bodies[name].lines.insert(0, f"{changed} = {text}")
    return True


def shape(draft: Draft, random: Random) -> bool:
    """Two dims have each other's slices, a dim or digit is left out, comes first or twice."""
    name = random.choice(list(draft.bodies))
    body = draft.bodies[name].slices
    dim = random.choice(list(body))
    match random.randrange(5):
        case 0 if len(body) > 1:
            other = random.choice([other_name for other_name in body if other_name != dim])
            body[dim], body[other] = body[other], body[dim]
        case 1:
            del body[dim]
        case 2 if len(body[dim]) > 1:
            body[dim].reverse()
        case 3 if len(body[dim]) > 1:
            body[dim][random.randrange(len(body[dim]))] = "ANY"
        case 4:
            body[dim].append(random.choice(body[dim]))
        case _:
            return False
    return True


def count(draft: Draft, random: Random) -> bool:
    """Another number of steps."""
    old, side = draft.steps, random.choice(draft.sides)
    asked = condition(random, draft.sides)
    if old == "1":
        longer = (side, "2", f"where({asked}, 1, 2)", f"where({asked}, {side}, 1)")
        draft.steps = random.choice(longer)
        return True
    draft.steps = random.choice((
        f"{old} + 1", f"where({old} > 1, {old} - 1, 1)", f"where({asked}, {old}, {old} + 1)", "1",
        side, f"where({asked}, {old}, {side})", f"where({asked}, 1, {old})", "2",
    ))  # fmt: skip
    return draft.steps != old


WRONG: dict[str, Change] = {
    "token": token,
    "assignment": line,
    "one body": alone,
    "shape": shape,
    "number of steps": count,
}
"""What seldom keeps a method right."""
