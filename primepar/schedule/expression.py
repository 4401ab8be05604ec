"""The small language of maps: what a primitive computes, as a graph that every reader evaluates.

A map is called once, with `Expression`s instead of integers. What comes back is made of names,
whole numbers, `+ - * // %`, comparisons, `~ & |` and `where`; formulas of traffic and memory have
`/` and `**` too. `evaluate` reads it on integers, fractions, NumPy arrays, Z3 terms or other
expressions; `str` prints it as it was written; `parse` reads that text back.

    >>> r, s = name("r"), name("s")
    >>> str((r - 1) % s)
    '(r - 1) % s'
    >>> evaluate((r - 1) % s, {"r": 0, "s": 3})
    2

There is one node for each expression (hash consing), so equal expressions are one object. A map may
use a part many times: after `n = where(n >= s, n - s, n)`, fourteen times, the text of `n` has
millions of characters, and its graph 43 nodes. Whoever reads an expression visits each node once,
and none recursively, as a sum of 3,000 terms is 3,000 nodes deep.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import reduce
from typing import Any, NoReturn, Self
from weakref import WeakValueDictionary

from primepar.errors import PrimitiveError, SymbolicError
from primepar.schedule.deadline import in_time

Value = Any
"""An integer, a fraction, an array of integers, a Z3 term or an expression."""

LARGEST = 2**62
"""Numbers of a map stay below it, up and down: NumPy's integers have 64 bits and wrap silently."""
MOST_TEXT = 20_000
"""Characters of an expression that are printed or read; what is longer ends in `...`."""
MOST_POWER = 16
"""Largest exponent of a formula."""
_LEVELS = {
    "==": 0, "!=": 0, "<": 0, "<=": 0, ">": 0, ">=": 0, "|": 1, "&": 2, "+": 3, "-": 3,
    "*": 4, "/": 4, "//": 4, "%": 4, "neg": 5, "~": 5, "**": 6,
}  # fmt: skip
"""How tightly an operator binds, as in Python."""
_IF = "`if`, `and`, `or`, `not`, min or max of a device, step or side: write where(condition, a, b)"
_LOGIC = "and join conditions with &, | and ~"
_NUMBER = (
    "a device, step or side that is turned into a number, looked up or counted with: "
    "use +, -, *, //, % and where"
)
_ROUNDED = (
    "a device, step or side that is rounded or made a number of Python's: write a // b for a "
    "quotient of whole numbers"
)
_KEY = "a device, step or side as a member of a set or a key of a dict: write dict(M=..., N=...)"
_BITS = "bits of a device, step or side: write // 2 and % 2, and join conditions with &, | and ~"
_TRUTH = "a comparison that is used as a number: write where(condition, 1, 0)"


_Step = tuple[Callable[..., Any] | None, Any, tuple[int, ...]]
"""An operator with its operands, each (is a register, register or number), and the registers that
nobody reads later; no operator for a name, which is then the operand."""


class _Node:
    """An operator and its parts: nodes, whole numbers, or the text of a name.

    `_Node("+", a, b)` is the node that was made of the same operator and parts before, if it is
    still in use. A key holds the parts by their `id`s, which stay theirs while the node lives.
    """

    __slots__ = ("__weakref__", "_plan", "operator", "parts")
    operator: str
    parts: tuple[Any, ...]
    _plan: tuple[_Step, ...] | None

    def __new__(cls, operator_: str, *parts: Any) -> Self:
        # True == 1 in Python, but `True & x` is not `1 & x`: so the type is part of the key.
        key = operator_, *[(id(p),) if isinstance(p, _Node) else (type(p), p) for p in parts]
        known: Self | None = _NODES.get(key)
        if known is not None:
            return known
        node = super().__new__(cls)
        node.operator, node.parts, node._plan = operator_, parts, None
        _NODES[key] = node
        return node

    def __str__(self) -> str:
        return text_of(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"

    def _no_truth(self, *_: object) -> NoReturn:
        raise SymbolicError(f"{_IF} {_LOGIC}")

    def _no_number(self, *_: object) -> NoReturn:
        raise SymbolicError(_NUMBER)

    def _no_numpy(self, function: Any, *_: object, **__: object) -> NoReturn:
        called = getattr(function, "__name__", function)
        advice = "primepar.where" if called in ("where", "select") else "+, -, *, //, % and where"
        raise SymbolicError(f"NumPy's {called}: use {advice}")

    def _no_array(self, *_: object, **__: object) -> NoReturn:
        raise SymbolicError(
            "a NumPy array of devices, steps or sides: use +, -, *, //, % and where"
        )

    def _no_rounding(self, *_: object) -> NoReturn:
        raise SymbolicError(_ROUNDED)

    def _no_key(self) -> NoReturn:
        raise SymbolicError(_KEY)

    def _no_bits(self, *_: object) -> NoReturn:
        raise SymbolicError(_BITS)

    @classmethod
    def __torch_function__(cls, function: Any, *_: object, **__: object) -> NoReturn:
        """torch asks for this method before it works on what is no tensor."""
        called = getattr(function, "__name__", function)
        advice = "primepar.where" if called == "where" else "+, -, *, //, % and where"
        raise SymbolicError(f"torch's {called}: use {advice}")

    __bool__ = _no_truth
    __array_function__ = __array_ufunc__ = _no_numpy
    __array__ = _no_array
    __hash__ = _no_key
    __index__ = __iter__ = __getitem__ = __len__ = _no_number
    __int__ = __float__ = __round__ = __floor__ = __ceil__ = __trunc__ = _no_rounding


_NODES: WeakValueDictionary[tuple[Any, ...], Any] = WeakValueDictionary()


class Condition(_Node):
    """A comparison, or several joined by `~`, `&` and `|`."""

    __slots__ = ()

    def __invert__(self) -> Condition:
        return Condition("~", self)

    def __and__(self, other: Any) -> Condition:
        return Condition("&", self, _condition(other))

    def __or__(self, other: Any) -> Condition:
        return Condition("|", self, _condition(other))

    def __rand__(self, other: Any) -> Condition:
        return Condition("&", _condition(other), self)

    def __ror__(self, other: Any) -> Condition:
        return Condition("|", _condition(other), self)

    def __where__(self, then: Any, otherwise: Any) -> Expression:
        """`then` where the condition holds, else `otherwise`."""
        return Expression("where", self, number(then), number(otherwise))

    def _refuse(self, *_: object) -> NoReturn:
        raise SymbolicError(_TRUTH)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = __mod__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __hash__ = _Node._no_key


class Expression(_Node):
    """A number that is known by how it is computed from devices, the step and the sides."""

    __slots__ = ()

    def __add__(self, other: Any) -> Expression:
        return Expression("+", self, number(other))

    def __radd__(self, other: Any) -> Expression:
        return Expression("+", number(other), self)

    def __sub__(self, other: Any) -> Expression:
        return Expression("-", self, number(other))

    def __rsub__(self, other: Any) -> Expression:
        return Expression("-", number(other), self)

    def __mul__(self, other: Any) -> Expression:
        return Expression("*", self, number(other))

    def __rmul__(self, other: Any) -> Expression:
        return Expression("*", number(other), self)

    def __mod__(self, other: Any) -> Expression:
        return Expression("%", self, number(other))

    def __rmod__(self, other: Any) -> Expression:
        return Expression("%", number(other), self)

    def __floordiv__(self, other: Any) -> Expression:
        return Expression("//", self, number(other))

    def __rfloordiv__(self, other: Any) -> Expression:
        return Expression("//", number(other), self)

    def __truediv__(self, other: Any) -> Expression:
        return Expression("/", self, number(other))

    def __rtruediv__(self, other: Any) -> Expression:
        return Expression("/", number(other), self)

    def __pow__(self, other: Any) -> Expression:
        return Expression("**", self, number(other))

    def __divmod__(self, other: Any) -> tuple[Expression, Expression]:
        return self // other, self % other

    def __neg__(self) -> Expression:
        return Expression("neg", self)

    def __pos__(self) -> Expression:
        return self

    def __abs__(self) -> Expression:
        return (self < 0).__where__(-self, self)

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]
        return Condition("==", self, number(other))

    def __ne__(self, other: object) -> Condition:  # type: ignore[override]
        return Condition("!=", self, number(other))

    def __lt__(self, other: Any) -> Condition:
        return Condition("<", self, number(other))

    def __le__(self, other: Any) -> Condition:
        return Condition("<=", self, number(other))

    def __gt__(self, other: Any) -> Condition:
        return Condition(">", self, number(other))

    def __ge__(self, other: Any) -> Condition:
        return Condition(">=", self, number(other))

    def __where__(self, *_: object) -> NoReturn:
        raise SymbolicError(f"{self!s:.40} as a condition: write where(x == 1, a, b)")

    __hash__ = _Node._no_key
    __rpow__ = _Node._no_number
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _Node._no_bits
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __invert__ = _Node._no_bits


Number = Expression | int | Fraction
"""What a map or formula computes: an expression, or a plain number."""


def name(text: str) -> Expression:
    """The expression of one name: an axis, `t`, a side."""
    return Expression("name", text)


def number(value: Any) -> Number:
    """A value as a part of an expression. Raises `SymbolicError` for what is no number."""
    if isinstance(value, Expression | Fraction):
        return value
    if isinstance(value, Condition):
        raise SymbolicError(_TRUTH)
    try:
        whole = int(operator.index(value))
    except TypeError:
        raise SymbolicError(f"{type(value).__name__} {value!s:.40}: use whole numbers") from None
    if abs(whole) >= LARGEST:
        raise SymbolicError(f"a number of {whole.bit_length()} bits: use numbers below 2**62")
    return whole


def same(one: Number | None, other: Number | None) -> bool:
    """Whether two numbers are one expression, or equal plain numbers."""
    return one is other or (
        not isinstance(one, Expression) and not isinstance(other, Expression) and one == other
    )


def _condition(value: Any) -> Condition | bool:
    if isinstance(value, Condition | bool):
        return value
    raise SymbolicError(f"{value!s:.40} joined with a condition: write {value!s:.40} == 1 {_LOGIC}")


# Reading


def negated(truth: Value) -> Value:
    """The opposite of a truth: a bool, an array of bools or a condition."""
    return not truth if isinstance(truth, bool) else ~truth


def _divided(divide: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    def checked(left: Value, right: Value) -> Value:
        is_array = hasattr(right, "min")
        least = right.min(initial=1) if is_array else right
        if (is_array or isinstance(least, int)) and least < 1:
            raise PrimitiveError(
                f"expected % and // by 1 or more, got {least}: use the length of a side"
            )
        return divide(left, right)

    return checked


def _power(base: Value, exponent: Value) -> Value:
    if not isinstance(exponent, Expression) and not 0 <= exponent <= MOST_POWER:
        raise PrimitiveError(f"expected a power from 0 to {MOST_POWER}, got {exponent}")
    return base**exponent


_OPERATORS: dict[str, Callable[..., Value]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "**": _power, "//": _divided(operator.floordiv), "%": _divided(operator.mod),
    "neg": operator.neg, "==": operator.eq, "!=": operator.ne, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge, "~": negated, "&": operator.and_,
    "|": operator.or_,
}  # fmt: skip


def where(condition: Value, then: Value, otherwise: Value) -> Value:
    """`then` where the condition holds, else `otherwise`; for ints, arrays and expressions.

    Of integers `~`, `&` and `|` mean logic too: the lowest bit of `~True`, which is -2, is 0. The
    condition of a symbol decides by itself, in its method `__where__(then, otherwise)`.

    Examples:
        >>> where(1 == 1, 10, 20)
        10
    """
    if isinstance(condition, int):
        return then if condition & 1 else otherwise
    choose: Callable[[Value, Value], Value] | None = getattr(condition, "__where__", None)
    if choose is not None:
        return choose(then, otherwise)
    return condition * then + (1 - condition) * otherwise


_FUNCTIONS = {**_OPERATORS, "where": where}


def every(conditions: Iterable[Any]) -> Any:
    """All of the conditions hold."""
    return reduce(operator.and_, conditions, True)


def evaluate(node: Any, values: Mapping[str, Value]) -> Value:
    """The value of an expression or condition, each name having the value that is given.

    Raises `PrimitiveError` where a plain number is divided by less than 1, `UnansweredError` after
    a deadline, and what the values themselves raise.
    """
    if not isinstance(node, _Node):
        return node
    if node._plan is None:
        node._plan = _planned(node)
    registers: list[Value] = []
    for function, operands, unused in in_time(node._plan):
        if function is None:
            registers.append(values[operands])
        else:
            registers.append(function(*[registers[x] if is_register else x
                                        for is_register, x in operands]))  # fmt: skip
        for register in unused:
            registers[register] = None  # an array of a million places, perhaps
    return registers[-1]


def _planned(root: _Node) -> tuple[_Step, ...]:
    """The nodes in the order in which they are evaluated, each with a register of its own.

    A plan has no nodes: one that did would keep the node that keeps it in memory.
    """
    ordered = nodes(root)
    registers = {id(node): register for register, node in enumerate(ordered)}
    operands = [[(True, registers[id(part)]) if isinstance(part, _Node) else (False, part)
                 for part in node.parts] for node in ordered]  # fmt: skip
    # The later place wins, so this is the last one that reads a register; behind it the value is
    # let go.
    last_reader = {register: place for place, read in enumerate(operands)
                   for is_register, register in read if is_register}  # fmt: skip
    unused: list[list[int]] = [[] for _ in ordered]
    for register, place in last_reader.items():
        unused[place].append(register)
    return tuple(
        (None, node.parts[0], ()) if node.operator == "name"
        else (_FUNCTIONS[node.operator], tuple(read), tuple(free))
        for node, read, free in zip(ordered, operands, unused, strict=True)
    )  # fmt: skip


def nodes(*roots: Any) -> list[_Node]:
    """Every node of some expressions once, parts before what is made of them."""
    listed: list[_Node] = []
    visited: set[int] = set()
    waiting = [root for root in reversed(roots) if isinstance(root, _Node)]
    while waiting:
        node = waiting[-1]
        # Parts first, without recursion: a node stays on the stack until all of its parts are
        # listed.
        missing = [part for part in node.parts
                   if isinstance(part, _Node) and id(part) not in visited]  # fmt: skip
        if missing and id(node) not in visited:
            waiting += reversed(missing)
            continue
        waiting.pop()
        if id(node) not in visited:
            visited.add(id(node))
            listed.append(node)
    return listed


def names(*roots: Any) -> frozenset[str]:
    """The names that expressions depend on."""
    return frozenset(str(leaf.parts[0]) for leaf in nodes(*roots) if leaf.operator == "name")


def magnitude(root: Any, names: Mapping[str, int]) -> int:
    """A bound of all parts of an expression, up and down, by bounds of its names.

    It is not computed further than to the first part of which it is `LARGEST` or more:
    `n = n * n`, sixty times, would be a number of 2**60 bits.
    """
    if not isinstance(root, _Node):
        return abs(int(root))
    most: dict[int, int] = {}
    size: int
    for node in nodes(root):
        sizes = [most[id(part)] if isinstance(part, _Node) else abs(part)
                 for part in node.parts if not isinstance(part, str)]  # fmt: skip
        match node.operator:
            case "name":
                size = names[node.parts[0]]
            case "+" | "-":
                size = sum(sizes)
            case "*":
                size = sizes[0] * sizes[1]
            case "where" | "%":
                size = max(sizes[1:])
            case _:
                size = sizes[0]  # // and neg; of comparisons and logic it bounds nothing
        if size >= LARGEST:
            return size
        most[id(node)] = size
    return max(most.values(), default=0)


# Text


def text_of(root: Any, most: int = MOST_TEXT) -> str:
    """The text of an expression, no more than `most` characters of it."""
    written, length = list[str](), 0
    waiting: list[str | tuple[Any, int]] = [(root, 0)]
    while waiting and length <= most:
        part = waiting.pop()
        if isinstance(part, str):
            written.append(part)
            length += len(part)
        else:
            waiting += reversed(_pieces(*part))
    text = "".join(written)
    return text if length <= most else f"{text[:most]}..."


def _pieces(node: Any, free_from: int) -> list[str | tuple[Any, int]]:
    """The text of a node, each part with the level from which it needs no parentheses."""
    if not isinstance(node, _Node):
        return [str(node)]
    if node.operator == "name":
        return [node.parts[0]]
    if node.operator == "where":
        condition, then, otherwise = node.parts
        return ["where(", (condition, 0), ", ", (then, 0), ", ", (otherwise, 0), ")"]
    level = _LEVELS[node.operator]
    pieces: list[str | tuple[Any, int]]
    if len(node.parts) == 1:
        pieces = ["-" if node.operator == "neg" else "~", (node.parts[0], level)]
    else:
        # An equal level on the right needs its parentheses: a - (b - c). So do two comparisons.
        left, right = node.parts
        pieces = [(left, level + (level == 0)), f" {node.operator} ", (right, level + 1)]
    return ["(", *pieces, ")"] if level < free_from else pieces


_PARSED: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%", ast.Eq: "==",
    ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.BitAnd: "&",
    ast.BitOr: "|", ast.USub: "neg", ast.Invert: "~",
}  # fmt: skip


def parse(text: str) -> Number:
    """The expression or whole number of a text. Raises `ValueError` for any other text."""
    try:
        if len(text) <= MOST_TEXT:
            return number(_parsed(ast.parse(text, mode="eval").body))
    except (SyntaxError, KeyError, RecursionError, MemoryError, SymbolicError, PrimitiveError):
        pass
    raise ValueError(f"expected an expression like (r + t) % s, got {text[:60]!r}")


def _parsed(tree: ast.AST) -> Any:
    match tree:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.Name(id=text):
            return name(text)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return -value
        case ast.UnaryOp(op=op, operand=one):
            return _OPERATORS[_PARSED[type(op)]](_parsed(one))
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[_PARSED[type(op)]](_parsed(left), _parsed(right))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _OPERATORS[_PARSED[type(op)]](_parsed(left), _parsed(right))
        case ast.Call(func=ast.Name(id="where"), args=[condition, then, otherwise], keywords=[]):
            return where(_parsed(condition), _parsed(then), _parsed(otherwise))
    raise KeyError(type(tree).__name__)
