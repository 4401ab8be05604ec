"""Ways to alter a certificate, as JSON that is known by nothing but its shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from random import Random
from typing import Any

import msgspec

Json = Any
Path = tuple[Any, ...]
Alteration = Callable[[Json, Random, Json], Json]
"""(a certificate that may be changed in place, random, another certificate) -> altered JSON.

Raises `IndexError` where there is nothing to alter.
"""


def walk(tree: Json, path: Path = ()) -> Iterator[tuple[Path, Json]]:
    """Every value in a tree with the way to it, the tree itself first."""
    yield path, tree
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from walk(value, (*path, key))


def at(tree: Json, path: Path) -> Json:
    """The value at the end of a way. Raises `LookupError` or `TypeError` where it ends before."""
    for key in path:
        tree = tree[key]
    return tree


def put(tree: Json, path: Path, value: Json) -> Json:
    """The tree with another value at the end of a way."""
    if not path:
        return value
    at(tree, path[:-1])[path[-1]] = value
    return tree


def _picked(tree: Json, random: Random, fits: Callable[[Json], bool]) -> tuple[Path, Json]:
    """Some value that fits; its depth is drawn first, as most values are deeply nested."""
    matches = [(path, value) for path, value in walk(tree) if fits(value)]
    depth = random.choice(sorted({len(path) for path, _ in matches}))
    return random.choice([match for match in matches if len(match[0]) == depth])


def _is_number(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_long(value: Json) -> bool:
    return isinstance(value, list) and len(value) > 1


def _is_filled(value: Json) -> bool:
    return isinstance(value, dict | list) and len(value) > 0


def number(tree: Json, random: Random, _: Json) -> Json:
    """A number is another."""
    path, value = _picked(tree, random, _is_number)
    near = (value - 2, value - 1, value + 1, value + 2, value + 7, -value, 0, 1, 10**6 * value)
    return put(tree, path, random.choice(near))


def numbers(tree: Json, random: Random, _: Json) -> Json:
    """Two to six numbers are others."""
    for _ in range(random.randint(2, 6)):
        tree = number(tree, random, None)
    return tree


def word(tree: Json, random: Random, _: Json) -> Json:
    """A text is another one of the certificate, or none of it."""
    path, value = _picked(tree, random, lambda text: isinstance(text, str))
    words = sorted({text for _, text in walk(tree) if isinstance(text, str)} - {value})
    return put(tree, path, random.choice([*words, "no", "yes", value + "x"]))


def dropped(tree: Json, random: Random, _: Json) -> Json:
    """An entry is left out."""
    path, value = _picked(tree, random, _is_filled)
    key = random.choice(list(value)) if isinstance(value, dict) else random.randrange(len(value))
    del at(tree, path)[key]
    return tree


def doubled(tree: Json, random: Random, _: Json) -> Json:
    """An entry of a list is there twice."""
    _, value = _picked(tree, random, lambda node: isinstance(node, list) and len(node) > 0)
    place = random.randrange(len(value))
    value.insert(place, deepcopy(value[place]))
    return tree


def swapped(tree: Json, random: Random, _: Json) -> Json:
    """Two entries of one list or mapping change places."""
    _, value = _picked(tree, random, lambda node: _is_filled(node) and len(node) > 1)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    one, other = random.sample(keys, 2)
    value[one], value[other] = value[other], value[one]
    return tree


def renamed(tree: Json, random: Random, _: Json) -> Json:
    """A key has another name, that of a key elsewhere or a new one."""
    _, value = _picked(tree, random, lambda node: isinstance(node, dict) and len(node) > 0)
    key = random.choice(list(value))
    keys = sorted(
        {node for _, mapping in walk(tree) if isinstance(mapping, dict) for node in mapping}
    )
    value[random.choice([*keys, key + "x"])] = value.pop(key)
    return tree


def emptied(tree: Json, random: Random, _: Json) -> Json:
    """A list or mapping is empty."""
    path, value = _picked(tree, random, _is_filled)
    return put(tree, path, type(value)())


def cut(tree: Json, random: Random, _: Json) -> Json:
    """A list ends early."""
    _, value = _picked(tree, random, _is_long)
    del value[random.randrange(1, len(value)) :]
    return tree


def first_lost(tree: Json, random: Random, _: Json) -> Json:
    """A list begins late."""
    _, value = _picked(tree, random, _is_long)
    del value[: random.randrange(1, len(value))]
    return tree


def kind(tree: Json, random: Random, _: Json) -> Json:
    """A value is of another kind."""
    path, value = random.choice(list(walk(tree)))
    others: tuple[Json, ...] = (None, True, False, 0, -1, 1.5, "1", "", [], {}, [value], [[]])
    return put(tree, path, random.choice(others))


def spliced(tree: Json, random: Random, other: Json) -> Json:
    """A part is that of another certificate in the same place."""
    path, _ = _picked(tree, random, lambda node: node is not tree)
    try:
        return put(tree, path, deepcopy(at(other, path)))
    except (LookupError, TypeError):
        raise IndexError from None


def copied(tree: Json, random: Random, _: Json) -> Json:
    """A part is another part of the certificate of the same kind."""
    path, value = _picked(tree, random, lambda node: node is not tree)
    like = [node for _, node in walk(tree) if type(node) is type(value) and node is not tree]
    return put(tree, path, deepcopy(random.choice(like)))


def added(tree: Json, random: Random, _: Json) -> Json:
    """A mapping has one key more, or a list one entry more at its end."""
    _, value = _picked(tree, random, lambda node: isinstance(node, dict | list))
    parts = [node for _, node in walk(tree) if node is not tree]
    extra = deepcopy(random.choice(parts))
    if isinstance(value, dict):
        value["more"] = extra
    else:
        value.append(extra)
    return tree


def version(tree: Json, random: Random, _: Json) -> Json:
    """Another version or format."""
    key = random.choice(("version", "format", "type"))
    if key not in tree:
        raise IndexError
    others = (0, 2, 99, -1, "1", None) if key == "version" else ("program", "primepar-program", "")
    tree[key] = random.choice([other for other in others if other != tree[key]])
    return tree


ALTERATIONS: dict[str, Alteration] = {
    "number": number,
    "numbers": numbers,
    "word": word,
    "dropped": dropped,
    "doubled": doubled,
    "swapped": swapped,
    "renamed key": renamed,
    "emptied": emptied,
    "cut short": cut,
    "beginning lost": first_lost,
    "kind of value": kind,
    "spliced": spliced,
    "copied part": copied,
    "added": added,
    "version": version,
}
"""What an alteration is called -> how it is made; `truncated` cuts the text itself."""
KINDS = (*ALTERATIONS, "truncated")


def altered(text: bytes, way: str, random: Random, other: bytes) -> bytes | None:
    """A certificate altered in one way; None if there is nothing to alter so."""
    if way == "truncated":
        return text.rstrip()[: random.randrange(len(text.rstrip()))]
    tree = msgspec.json.decode(text)
    try:
        changed = ALTERATIONS[way](tree, random, msgspec.json.decode(other))
    except IndexError:
        return None
    return None if changed == msgspec.json.decode(text) else msgspec.json.encode(changed)
