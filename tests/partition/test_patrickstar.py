"""PatrickStar: the command's messages, and torch next to the emulator on real numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from command import run
from distributed_ranks import on_ranks
from patrickstar_ranks import INPUTS, SETTINGS, arrays, ran

from primepar.partition.patrickstar import PatrickStar
from primepar.reference.emulator.executor import emulate
from primepar.reference.kernels import StepKernels
from primepar.verify import verify_program


@pytest.mark.parametrize(
    "method", [PatrickStar(layers=3, chunk=4, ranks=1), PatrickStar(layers=5, ranks=2)]
)
def test_torch_ends_with_the_states_of_the_emulator(method: PatrickStar) -> None:
    """With an incomplete group on two ranks: all-gathers, broadcasts and both reductions."""
    program = method.program()
    emulated = emulate(program, arrays(program), kernels=StepKernels(SETTINGS, INPUTS))
    ended = [ran(method)] if method.ranks == 1 else on_ranks(method.ranks, ran, method)
    for known, host in zip(ended, emulated.hosts, strict=True):
        assert known.keys() == host.keys() != set()
        for name, array in known.items():
            np.testing.assert_allclose(array, host[name].array, rtol=1e-12)


@pytest.mark.parametrize(("ranks", "layers"), [(1, 3), (2, 8), (3, 6), (4, 8)])
def test_three_collectives_leave_every_rank(ranks: int, layers: int) -> None:
    """Two all-gathers and a reduce-scatter of every weight: 3 (p - 1) / p of its elements."""
    method = PatrickStar(layers=layers, ranks=ranks)
    program = method.program()
    expected = Fraction(3 * (ranks - 1) * layers * 4, ranks)
    emulated = emulate(program, arrays(program), kernels=StepKernels(SETTINGS, INPUTS))
    assert emulated.sent == [expected] * ranks
    assert program.traffic == (f"{3 * (ranks - 1) * layers * 4}/{ranks}",) * ranks
    assert verify_program(program)["traffic"].verdict == "proved"


def test_the_commands_know_it() -> None:
    assert run("verify", "patrickstar").out.startswith("patrickstar: proved for ")
    assert "peak per device  28 elements" in run("check", "patrickstar").out
    assert "least device memory  28 elements" in run("show", "patrickstar").out
    assert run("simulate", "patrickstar", "--cluster", "h200-8").code == 0
