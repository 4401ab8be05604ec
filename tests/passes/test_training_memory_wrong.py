"""Steps with activations computed again where what is computed again is wrong.

The explorer refutes them too. All other changes of such steps, and of those with shards, are
mutants, as those of other programs are.
"""

from __future__ import annotations

import pytest
from agreement import disagreement
from msgspec.structs import replace
from oracle.explore import explore
from step_cases import recomputed, spoilt

from primepar.errors import PrimeParError
from primepar.reference.check import memories
from primepar.reference.emulator.executor import emulate
from primepar.schedule.program import Compute, Instruction
from primepar.verify import verify_program

PHASE = "blocks.0.act.forward"


def marked(nodes: list[Instruction], again: bool) -> None:
    """Mark the first or second product of a phase as the other one is."""
    place, node = next(
        (place, node)
        for place, node in enumerate(nodes)
        if isinstance(node, Compute) and node.phase == PHASE and node.again != again
    )
    nodes[place] = replace(node, again=again)


def test_a_product_that_is_computed_again_and_not_marked_is_refuted() -> None:
    program = spoilt(recomputed(), lambda _, nodes: marked(nodes, False))
    report = verify_program(program)
    assert [one.name for one in report.properties if one.verdict == "refuted"] == ["coverage"]
    assert disagreement(report, explore(program)) == ""
    with pytest.raises(PrimeParError):
        emulate(program, memories(program))


def test_what_is_computed_again_was_computed_before() -> None:
    with pytest.raises(ValueError) as caught:
        spoilt(recomputed(), lambda _, nodes: marked(nodes, True))
    assert str(caught.value) == (
        "expected blocks.0.act.forward sub-operator (M=0, K=0) to be computed before it is "
        "computed again, got it never before: leave again out in programs[0][23]"
    )
