"""Placement, completion and alignment: Z3 decides the claims that a symbolic run has gathered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import z3

from primepar.schedule.operators import (
    PHASES,
    PRODUCTS,
    Dim,
    Phase,
    block_name,
    parse_block,
    tensor_dims,
)
from primepar.schedule.program import Compute, Program
from primepar.verify.program_solver import Solver
from primepar.verify.program_values import (
    GONE,
    ON_HOST,
    TWO_OPERANDS,
    Claim,
    SymbolicRun,
    Value,
    product_symbol,
)


def first_broken(claims: list[Claim], solver: Solver) -> str | None:
    """The first claim that does not hold, as a sentence; None if all hold.

    Raises `UndecidedError` if Z3 cannot tell.
    """
    claim = _first_wrong(claims, solver)
    if claim is None:
        return None
    return _absent(claim) if claim.got is None else _other_data(claim)


def _first_wrong(claims: list[Claim], solver: Solver) -> Claim | None:
    """The first claim that does not hold, by halving."""
    wrong = [z3.BoolVal(True) if claim.got is None else claim.got != claim.want for claim in claims]
    if solver.model([z3.Or(wrong)]) is None:
        return None
    low, high = 0, len(claims)
    while high - low > 1:
        middle = (low + high) // 2
        if solver.model([z3.Or(wrong[low:middle])]) is None:
            low = middle
        else:
            high = middle
    return claims[low]


def _absent(claim: Claim) -> str:
    if claim.purpose == TWO_OPERANDS:
        return f"{claim.where}: expected to read {claim.block}, and {TWO_OPERANDS}: list these two"
    if claim.purpose == ON_HOST:
        place, mend = "host memory", "evict it before"
    elif claim.purpose == GONE:
        place, mend = "memory", "free or evict it later"
    else:
        place, mend = "memory", "receive or compute it before, or list it in initial"
    return f"{claim.where}: expected {claim.block} in this rank's {place}, got none there: {mend}"


def _other_data(claim: Claim) -> str:
    want = str(claim.want)
    mend = f"read {want}" if claim.block != want else f"bring {want} here before"
    return (
        f"{claim.where}: expected the data of {want} in {claim.block} for the {claim.purpose}, "
        f"got that of {content(claim.got)}: {mend}"
    )


def content(value: Value) -> str:
    """What a block holds, in words: its terms with how often each is in the sum."""
    terms = [(str(term), _times(value, term)) for term in _symbols(value)]
    texts = [name if times == "1" else f"{times} times {name}" for name, times in terms
             if times != "0"]  # fmt: skip
    return " + ".join(texts[:4]) + f" + {len(texts) - 4} more" * (len(texts) > 4) or "zeros"


def _symbols(*values: Value) -> list[Value]:
    """Symbols of some expressions, in the order of their names."""
    found: dict[str, Value] = {}
    seen: set[int] = set()
    ready = list(values)
    while ready:
        node = ready.pop()
        if node.get_id() in seen:
            continue
        seen.add(node.get_id())
        if z3.is_const(node) and node.decl().kind() == z3.Z3_OP_UNINTERPRETED:
            found[str(node)] = node
        ready += node.children()
    return [found[name] for name in sorted(found)]


def _times(value: Value, term: Value) -> str:
    """How often a term is in a sum: the value where it is one and all others are zero."""
    units = [(symbol, z3.RealVal(1 if symbol.eq(term) else 0)) for symbol in _symbols(value, term)]
    return str(z3.simplify(z3.substitute(value, units)))


def is_output(program_outputs: Iterable[str], block: str) -> bool:
    """Whether a block is one that the program sums up, and not a scratch of it."""
    name = parse_block(block)
    return name is not None and name.tensor in program_outputs and not name.scratch


class Sums:
    """What the output blocks of a program must hold at its end."""

    def __init__(self, program: Program, run: SymbolicRun) -> None:
        self._run = run
        self._products: dict[str, list[Value]] = {}
        for phase in PHASES:
            output = PRODUCTS[phase].writes
            for sub_operator in _sub_operators(program, phase):
                index = tuple(sub_operator[d] for d in tensor_dims(output) if d in sub_operator)
                symbol = product_symbol(phase, sub_operator)
                self._products.setdefault(block_name(output, index), []).append(symbol)

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of all output blocks."""
        return tuple(self._products)

    def want(self, block: str) -> Value:
        """Every product of a block once, and what was in it before the program."""
        before = [self._run.datum(block)] if block in self._run.from_before else []
        return z3.Sum([*before, *self._products.get(block, []), z3.RealVal(0)])

    def unfinished(self, where: str, block: str, got: Value, solver: Solver) -> str | None:
        """What is wrong with a block at the end, None if it is the finished sum."""
        want = self.want(block)
        if got is None:
            return (
                f"{where}: expected the finished sum, got no such block: "
                "keep it on this rank, or send it here"
            )
        if solver.model([got != want]) is None:
            return None
        for term in _symbols(got, want):
            times, due = _times(got, term), _times(want, term)
            if times != due:
                return f"{where}: {self._miscounted(block, term, times, due)}"
        return f"{where}: expected the sum of its products, got {content(got)}: reduce it by sum"

    def _miscounted(self, block: str, term: Value, times: str, due: str) -> str:
        often = {"0": "never", "1": "once", "2": "twice"}
        expected = f"expected {term} {often[due]}, got it {often.get(times, f'{times} times')}"
        if times == "0":
            for made in self._run.made:
                if made.product is not None and made.product.eq(term):
                    return f"{expected}: bring it here from {made.where}"
            return f"{expected}: compute it"
        for made in self._run.made:
            if made.block == block and _times(made.value, term) not in ("0", due):
                return f"{expected}: mend {made.where}"
        return f"{expected}: mend what is received under this name"


def _sub_operators(program: Program, phase: Phase) -> Iterator[dict[Dim, int]]:
    """Those of the grid; where the phase has none, those that the program computes."""
    grid = (program.grid or {}).get(phase)
    if grid is not None:
        for index in product(*(range(slices) for slices in grid.values())):
            yield dict(zip(grid, index, strict=True))
        return
    seen: list[dict[Dim, int]] = []
    for instructions in program.programs:
        for node in instructions:
            if isinstance(node, Compute) and node.phase == phase:
                sub_operator = dict(node.sub_operator or {})
                if sub_operator not in seen:
                    seen.append(sub_operator)
    yield from seen


def complete(program: Program, run: SymbolicRun, solver: Solver) -> str | None:
    """The first output block that does not end as every product once; None if all do.

    With `final` these are the blocks that it lists, each on its rank; without, every output block
    of the grid, on any rank. Raises `UndecidedError` if Z3 cannot tell.
    """
    sums = Sums(program, run)
    if program.final is None:
        return _complete_somewhere(run, sums, solver)
    for rank, blocks in enumerate(program.final):
        for block in blocks:
            if not is_output(run.outputs, block):
                continue
            got = run.device[rank].get(block)
            if got is None and block.startswith("dW") and _holders(run, block):
                continue
            wrong = sums.unfinished(f"rank {rank}, final {block}", block, got, solver)
            if wrong is not None:
                return wrong
    return None


def _complete_somewhere(run: SymbolicRun, sums: Sums, solver: Solver) -> str | None:
    for block in sums.blocks:
        wrong: list[str] = []
        for rank in _holders(run, block):
            got = run.device[rank][block]
            what = sums.unfinished(f"rank {rank}, {block} at the end", block, got, solver)
            if what is None:
                break
            wrong.append(what)
        else:
            nowhere = f"{block}: expected the block on some rank at the end, got it on none"
            return wrong[0] if wrong else f"{nowhere}: keep it where it is summed"
    return None


def _holders(run: SymbolicRun, block: str) -> list[int]:
    return [rank for rank, memory in enumerate(run.device) if block in memory]


def aligned(program: Program, run: SymbolicRun) -> list[Claim]:
    """Claims on the blocks of `final` that are not sums, and on where the weight gradient ends."""
    claims: list[Claim] = []
    for rank, blocks in enumerate(program.final or ()):
        for block in blocks:
            got: Any = run.device[rank].get(block)
            where = f"rank {rank}, final {block}"
            if got is None:
                holders = _holders(run, block)
                if not is_output(run.outputs, block) or (block.startswith("dW") and holders):
                    there = f"it on rank {holders[0]}" if holders else "it on no rank"
                    claims.append(Claim("alignment", where, block, None, None, there))
            elif _is_datum(run, block):
                claims.append(Claim("alignment", where, block, got, run.datum(block)))
    return claims


def _is_datum(run: SymbolicRun, block: str) -> bool:
    """Whether a block's name says what it must hold, and that is no sum of the program."""
    name = parse_block(block)
    return name is not None and not name.scratch and not is_output(run.outputs, block)


def first_misaligned(claims: list[Claim], solver: Solver) -> str | None:
    """The first final block that is elsewhere or holds other data; None if all are right.

    Raises `UndecidedError` if Z3 cannot tell.
    """
    claim = _first_wrong(claims, solver)
    if claim is None:
        return None
    if claim.got is None:
        return f"{claim.where}: expected it at the end, got {claim.purpose}: bring it here"
    return (
        f"{claim.where}: expected its own data at the end, got {content(claim.got)}: "
        f"bring {claim.block} here"
    )
