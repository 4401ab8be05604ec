"""Maps outside the language: they look at types, keep state, trust to luck, or branch.

Each is PrimePar, or SUMMA where a home or the steps are attacked. What is wrong in it is wrong for
integers, and hidden from symbols; or it is right for integers, and no expression.
"""

from __future__ import annotations

from random import Random

IS_INTEGER = (
    "isinstance(r, int)", "type(s) is int", "hasattr(t, 'bit_length')", "str(t).isdigit()",
    "type(c).__name__ == 'int'", "r.__class__ is int", "isinstance(t == 0, bool)",
    "isinstance(r + 1, int)", "repr(s)[:1].isdigit()", "isinstance(r + c + t, (int, float))",
    "callable(getattr(s, '__index__', None))", "(r == r) is True", "not hasattr(t, '__dict__')",
    "isinstance(r % s, int)", "format(t).isdigit()", "t.__class__.__module__ == 'builtins'",
)  # fmt: skip
"""True of integers, and not of symbols."""
TRIED = ("int(t)", "range(s)", "bool(t == 0)", "[0, 1][r]", "hash(c)", "t.bit_length()", "{}[r:c]",
         "format(t, 'd')", "divmod(r, 2)[0] / 1", "t.real")  # fmt: skip
"""Raise for symbols, if not for integers too."""
STATE = (
    ("", "self.calls = getattr(self, 'calls', 0) + 1", "self.calls > {many}"),
    ("", "type(self).calls = getattr(type(self), 'calls', 0) + 1", "type(self).calls > {many}"),
    ("CALLS = []", "CALLS.append(t)", "len(CALLS) > {many}"),
    ("from itertools import count\n\nTIMES = count()", "calls = next(TIMES)", "calls > {many}"),
    ("", "self.last, last = r, getattr(self, 'last', r)", "last is not r"),
    ("SEEN = {}", "first = SEEN.setdefault('first', id(self)) == id(self)", "not first"),
)
"""The text before the class, what is done at each call, and what is true from some call on."""
LUCK = (
    "__import__('random').random() < 0.5", "__import__('secrets').randbits(1)",
    "__import__('time').time_ns() // 100 % 2", "__import__('os').urandom(1)[0] % 2",
    "__import__('time').perf_counter_ns() // 100 % 2",
    "any('verify' in f.filename for f in __import__('inspect').stack())",
    "any('trace' in f.function for f in __import__('inspect').stack())",
)  # fmt: skip
"""Chance at every call. (The address of a new object is often the same one again.)"""
BRANCHES = (
    "n = {right} if t < s - 1 else (r + c + s - 1) % s",
    "if t == s - 1:\n            t = s - 1\n        n = {right}",
    "n = (r + c + max(t, 0)) % s",
    "n = (r + c + min(t, s - 1)) % s",
    "n = (r + c + t) % s if r < s and c < s else 0",
    "n = (r + c + int(t)) % s",
    "n = (r + c + range(s)[t]) % s",
    "n = [(r + c + i) % s for i in range(s)][t]",
    "n = {i: (r + c + i) % s for i in range(s)}[t]",
    "n = (r + c + len(range(t))) % s",
    "n = (r + c + sum(1 for _ in range(t))) % s",
    "n = (r + c + (t if 0 <= t < s else 0)) % s",
    "n = (r + c + (t and t)) % s",
    "n = (r + c + (t or 0)) % s",
    "n = r + c + t\n        while n >= s:\n            n -= s",
    "for _ in range(t):\n            r = (r + 1) % s\n        n = (r + c) % s",
    "n = (r + c + t ** 1) % s",
    "n = (r + c + (t ^ 0)) % s",
    "n = (r + c + (t << 0)) % s",
    "n = (r * s + c * s + t * s) // s % s",
    "n = int((r + c + t) % s / 1)",
    "n = __import__('math').floor((r + c + t) % s)",
    "n = int(__import__('numpy').where(t == 0, r + c, r + c + t)) % s",
    "n = sorted([0, (r + c + t) % s])[-1]",
    "n = abs(r + c + t) % s",
    "n = round((r + c + t) % s)",
    "match t:\n            case 0:\n                n = (r + c) % s\n            case _:\n"
    "                n = (r + c + t) % s",
    "assert t < s\n        n = (r + c + t) % s",
    "n = (r + c + t) % s\n        if not n < s:\n            raise ValueError(n)",
)
"""Right for integers; some of them are in the language after all."""
RETURNS = (
    "None", "[r, n, c]", "(r, n, c)", "dict(M=r, N=n, L=c)", "dict(M=str(r), N=n, K=c)",
    "dict(M=[r], N=n, K=c)", "{dict(M=r, N=n, K=c)}", "dict(M=r, N=n, K=c + 0.5)",
    "dict(M=r, N=n, K=None)", "dict(M=r, N=n, K=(c, (0, 1)))", "dict(M=r - 1, N=n, K=c)",
    "dict(M=r == 0, N=n, K=c)", "iter(dict(M=r, N=n, K=c))", "dict(M=r, N=n, K={c})",
    "dict(M=r, N=n, K=-c)", "dict(M=r, N=n, K=10**7 * c)", "NotImplemented", "'M'",
)  # fmt: skip
PRIMEPAR = """\
from primepar import Primitive, where
{before}

class {name}(Primitive):
    axes = ("r", "c")

    def forward(self, r, c, t, s):
        {lines}
        return {returned}

    def backward(self, r, c, t, s):
        return dict(M=r, N=(r + c - 1) % s, K=(c + t) % s)

    def gradient(self, r, c, t, s):
        last = where(t == s - 1, 1, 0)
        return dict(M=(r + t) % s, N=(r + c - 1 + last) % s, K=(c - 1 + last) % s)
"""
SUMMA = """\
from primepar import Primitive, where


class {name}(Primitive):
    axes = ("r", "c")

    def steps(self, s):
        return {steps}

    def forward(self, r, c, t, s):
        return dict(M=r, N=t, K=c)

    def home(self, tensor, r, c, s):
        {lines}
        return {{"I": dict(M=r, N=c), "W": dict(N={n}, K=c), "O": dict(M=r, K=c)}}[tensor]
"""


def outside(random: Random, name: str) -> tuple[str, str, bool | None]:
    """What kind of map it is, its source, and False if it is no function of its arguments."""
    kinds = (_types, _types, _late, _tried, _state, _luck, _branches, _branches, _returns, _steps,
             _home)  # fmt: skip
    return random.choice(kinds)(random, name)


def _primepar(
    name: str, lines: str, before: str = "", returned: str = "dict(M=r, N=n, K=c)"
) -> str:
    return PRIMEPAR.format(name=name, lines=lines, before=before, returned=returned)


RIGHT = "(r + c + t) % s"


def _wrong(random: Random) -> str:
    """The slices of N, wrong from some small side on."""
    side = random.randint(1, 4)
    return random.choice((
        f"(r + c + where(s > {side}, 0, t)) % s", f"(r + c + t + where(s > {side}, t, 0)) % s",
        f"where(s > {side}, 0, {RIGHT})", "(r + c) % s",
        f"(r + where(s == {side + 1}, r, c) + t) % s",
    ))  # fmt: skip


def _types(random: Random, name: str) -> tuple[str, str, bool | None]:
    one, other = _wrong(random), RIGHT
    if random.random() < 0.3:
        one, other = other, one
    asked = random.choice(IS_INTEGER)
    return "types", _primepar(name, f"n = {one} if {asked} else {other}"), None


def _late(random: Random, name: str) -> tuple[str, str, bool | None]:
    """Types are looked at, and the map is wrong for integers above side 3 alone."""
    asked, side = random.choice(IS_INTEGER), random.randint(3, 5)
    line = f"n = {RIGHT}\n        if {asked} and s > {side}:\n            n = 0"
    return "types above side 3", _primepar(name, line), None


def _tried(random: Random, name: str) -> tuple[str, str, bool | None]:
    one, other = _wrong(random), RIGHT
    if random.random() < 0.3:
        one, other = other, one
    line = (f"try:\n            {random.choice(TRIED)}\n            n = {one}\n"
            f"        except {random.choice(('Exception', 'BaseException'))}:\n"
            f"            n = {other}")  # fmt: skip
    return "exceptions", _primepar(name, line), None


def _state(random: Random, name: str) -> tuple[str, str, bool | None]:
    before, line, asked = random.choice(STATE)
    many = random.choice((0, 1, 5, 20, 100, 500, 1000))
    line += f"\n        n = {_wrong(random)} if {asked.format(many=many)} else {RIGHT}"
    return "state", _primepar(name, line, f"\n{before}\n" * bool(before)), False


def _luck(random: Random, name: str) -> tuple[str, str, bool | None]:
    line = f"n = {_wrong(random)} if {random.choice(LUCK)} else {RIGHT}"
    return "luck", _primepar(name, line), False


def _branches(random: Random, name: str) -> tuple[str, str, bool | None]:
    line = random.choice(BRANCHES).replace("{right}", RIGHT)
    return "branches", _primepar(name, line), None


def _returns(random: Random, name: str) -> tuple[str, str, bool | None]:
    line = f"n = {RIGHT}"
    return "returns", _primepar(name, line, returned=random.choice(RETURNS)), None


def _steps(random: Random, name: str) -> tuple[str, str, bool | None]:
    """The number of steps looks at the side."""
    asked = random.choice([text.replace("r + c + t", "s").replace("t == 0", "s == 0")
                           for text in IS_INTEGER if " t" not in text])  # fmt: skip
    asked = asked.replace("(t", "(s").replace("(r", "(s").replace("(c", "(s")
    asked = asked.replace("r.", "s.").replace("t.__c", "s.__c").replace("== r)", "== s)")
    few = f"where(s > {random.randint(0, 4)}, 1, s)"
    steps = f"{few} if {asked} else s"
    return "steps", SUMMA.format(name=name, steps=steps, lines="pass", n="r"), None


def _home(random: Random, name: str) -> tuple[str, str, bool | None]:
    """A home looks at types or keeps state."""
    asked = random.choice((
        "isinstance(r, int)", "type(s) is int", "hasattr(c, 'bit_length')", "str(r).isdigit()",
        "self.calls > 30", "type(s) is int and s > 3",
    ))  # fmt: skip
    lines = "self.calls = getattr(self, 'calls', 0) + 1\n" + f"        n = 0 if {asked} else r"
    return "home", SUMMA.format(name=name, steps="s", lines=lines, n="n"), None
