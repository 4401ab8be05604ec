"""The small language of maps: what a primitive computes, as a tree that every reader evaluates.

A map is called once, with `Expression`s instead of integers. What comes back is a tree of names,
whole numbers, `+ - * // %`, comparisons, `~ & |` and `where`; formulas of traffic and memory have
`/` and `**` too. `evaluate` reads it on integers, fractions, NumPy arrays, Z3 terms or other
expressions; `str` prints it as it was written; `parse` reads that text back.

    >>> r, s = name("r"), name("s")
    >>> str((r - 1) % s)
    '(r - 1) % s'
    >>> evaluate((r - 1) % s, {"r": 0, "s": 3})
    2
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import reduce
from typing import Any, NoReturn

from primepar.errors import PrimitiveError, SymbolicError

Value = Any
"""An integer, a fraction, an array of integers, a Z3 term or an expression."""

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
_TRUTH = "a comparison that is used as a number: write where(condition, 1, 0)"


class _Node:
    """An operator and its parts: nodes, whole numbers, or the text of a name."""

    __slots__ = ("__weakref__", "operator", "parts")

    def __init__(self, operator_: str, *parts: Any) -> None:
        self.operator, self.parts = operator_, parts

    def __str__(self) -> str:
        return _text(self)

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

    __bool__ = _no_truth
    __array_function__ = __array_ufunc__ = _no_numpy
    __array__ = _no_array
    __hash__ = __index__ = __int__ = __float__ = __iter__ = __getitem__ = __len__ = _no_number
    __round__ = __floor__ = __ceil__ = __trunc__ = _no_number


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
    __hash__ = _Node._no_number


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

    __hash__ = _Node._no_number
    __rpow__ = __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _Node._no_number
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __invert__ = _Node._no_number


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
        return operator.index(value)
    except TypeError:
        raise SymbolicError(f"{type(value).__name__} {value!s:.40}: use whole numbers") from None


def _condition(value: Any) -> Condition | bool:
    if isinstance(value, Condition | bool):
        return value
    raise SymbolicError(f"{value!s:.40} joined with a condition: {_LOGIC}")


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


_OPERATORS: dict[str, Callable[..., Value]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "**": operator.pow, "//": _divided(operator.floordiv), "%": _divided(operator.mod),
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


def every(conditions: Iterable[Any]) -> Any:
    """All of the conditions hold."""
    return reduce(operator.and_, conditions, True)


def evaluate(node: Any, values: Mapping[str, Value]) -> Value:
    """The value of an expression or condition, each name having the value that is given.

    Parts that occur twice are evaluated once. Raises `PrimitiveError` where a plain number is
    divided by less than 1, and what the values themselves raise.
    """
    known: dict[int, Value] = {}

    def read(part: Any) -> Value:
        if not isinstance(part, _Node):
            return part
        if part.operator == "name":
            return values[part.parts[0]]
        if id(part) not in known:
            parts = [read(operand) for operand in part.parts]
            function = where if part.operator == "where" else _OPERATORS[part.operator]
            known[id(part)] = function(*parts)
        return known[id(part)]

    return read(node)


def nodes(node: Any) -> Iterator[_Node]:
    """Every node of a tree, the outermost first."""
    if isinstance(node, _Node):
        yield node
        if node.operator != "name":
            for part in node.parts:
                yield from nodes(part)


def names(node: Any) -> frozenset[str]:
    """The names that an expression depends on."""
    return frozenset(str(leaf.parts[0]) for leaf in nodes(node) if leaf.operator == "name")


# Text


def _text(node: Any) -> str:
    if not isinstance(node, _Node):
        return str(node)
    if node.operator == "name":
        return str(node.parts[0])
    if node.operator == "where":
        return f"where({', '.join(map(_text, node.parts))})"
    level = _LEVELS[node.operator]
    if len(node.parts) == 1:
        return ("-" if node.operator == "neg" else "~") + _within(node.parts[0], level)
    # An equal level on the right needs its parentheses: a - (b - c). So do two comparisons.
    left, right = node.parts
    return f"{_within(left, level + (level == 0))} {node.operator} {_within(right, level + 1)}"


def _within(part: Any, level: int) -> str:
    inner = _LEVELS.get(part.operator, 7) if isinstance(part, _Node) else 7
    return f"({_text(part)})" if inner < level else _text(part)


_PARSED: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%", ast.Eq: "==",
    ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.BitAnd: "&",
    ast.BitOr: "|", ast.USub: "neg", ast.Invert: "~",
}  # fmt: skip


def parse(text: str) -> Number:
    """The expression or whole number of a text. Raises `ValueError` for any other text."""
    try:
        return number(_parsed(ast.parse(text, mode="eval").body))
    except (SyntaxError, KeyError, RecursionError, MemoryError, SymbolicError, PrimitiveError):
        raise ValueError(f"expected an expression like (r + t) % s, got {text[:60]!r}") from None


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
