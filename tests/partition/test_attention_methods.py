"""Ring attention and Ulysses: equal to dense attention, proved for every size; others refuted.

Programs with a wrong instruction are in `test_mutants`.
"""

from __future__ import annotations

from dataclasses import replace as replace_map
from itertools import permutations

import numpy as np
import pytest
from command import run
from oracle.explore import explore

from primepar.models import ModelConfig
from primepar.operators import StepSettings
from primepar.partition.ring_attention import BACKWARD, RingAttention
from primepar.partition.ulysses import Ulysses
from primepar.reference.check import check_program
from primepar.reference.emulator.executor import emulate
from primepar.reference.emulator.tensors import gather_tensors, spread_tensors
from primepar.reference.kernels import StepKernels
from primepar.reference.kernels.attention import added_states
from primepar.reference.oracle.attention import attention, attention_backward
from primepar.reference.oracle.layers import Array
from primepar.schedule.meaning import Meaning
from primepar.verify import verify_program
from primepar.verify.every_size.attention import (
    HeadExchange,
    RingOfKeys,
    prove_ring,
    prove_ulysses,
)

Divided = RingAttention | Ulysses
SIZES = [
    *(RingAttention(devices=devices, positions=3 * devices) for devices in (1, 2, 3, 4, 7)),
    *(Ulysses(devices=p, positions=2 * p, heads=p * (1 + p % 2)) for p in (1, 2, 3, 4, 6)),
]


def settings(method: Divided) -> StepSettings:
    """The model of a method, for its kernels."""
    heads, positions = method.heads, method.positions
    hidden = heads * method.head_dim
    sizes = {"layers": 1, "hidden": hidden, "heads": heads, "context": positions, "vocabulary": 2}
    return StepSettings(ModelConfig.of("gpt", **sizes), 1, positions)


def differences(method: Divided, size: float = 1.0) -> dict[str, float]:
    """Tensor -> its largest difference from dense attention, relative to its largest element."""
    shape = 1, method.heads, method.positions, method.head_dim
    q, k, v, do = np.random.default_rng(3).normal(0, size, (4, *shape))
    gradients = attention_backward(q, k, v, do)
    dense = {
        "o": attention(q, k, v),
        "dq": gradients[0],
        "dkv": np.concatenate(gradients[1:], axis=-1),
    }
    dense = {name: rows(array) for name, array in dense.items()}
    given = {"q": rows(q), "kv": rows(np.concatenate([k, v], axis=-1)), "do": rows(do)}
    meaning = Meaning(method.program())
    memories = spread_tensors(meaning, given)
    done = emulate(meaning.program, memories, kernels=StepKernels(settings(method)))
    shapes = {name: array.shape for name, array in dense.items()}
    divided = gather_tensors(meaning, done.all_memories, shapes)
    return {
        name: float(np.abs(divided[name] - array).max() / np.abs(array).max())
        for name, array in dense.items()
    }


def rows(x_BATD: Array) -> Array:
    """The heads of every position next to one another."""
    return np.asarray(x_BATD[0].swapaxes(0, 1).reshape(x_BATD.shape[2], -1))


@pytest.mark.parametrize("method", SIZES, ids=lambda method: method.text)
def test_values_and_gradients_are_those_of_dense_attention(method: Divided) -> None:
    assert max(differences(method).values()) < 1e-12


@pytest.mark.parametrize("method", SIZES, ids=lambda method: method.text)
def test_programs_are_exact_and_proved_with_traffic_and_memory_of_the_formulas(
    method: Divided,
) -> None:
    program = method.program()
    report = check_program(program)
    assert report.equal, report.message
    assert {round(sent, 9) for sent in report.sent} == {round(float(method.sent), 9)}
    assert set(report.peak) == {method.held}
    proof = verify_program(program)
    assert proof.verdict == "proved"
    assert {"memory", "traffic"} < {result.name for result in proof.properties}
    assert explore(program).overall == "proved"


def test_scores_whose_exponentials_are_no_numbers_change_nothing() -> None:
    """Scores of some hundreds: exp of them is infinite, and the sums are stored without it."""
    method = RingAttention(devices=3, positions=9)
    assert differences(method, size=40.0)["o"] < 1e-12


def test_an_online_sum_does_not_depend_on_order_or_grouping_and_zeros_add_nothing() -> None:
    model = settings(RingAttention(heads=2, head_dim=3))
    states = np.random.default_rng(5).uniform(0.5, 2, (4, 6, 2 * 5))
    states[..., 4::5] *= (np.arange(4) * 300).reshape(4, 1, 1)
    whole = added_states(model, *states)
    for order in permutations(range(4)):
        first, second, third, last = states[list(order)]
        pairs = added_states(model, first, second), added_states(model, third, last)
        np.testing.assert_allclose(added_states(model, *pairs), whole, rtol=1e-13)
    np.testing.assert_array_equal(added_states(model, whole, np.zeros_like(whole)), whole)


def test_both_are_proved_for_every_number_of_devices() -> None:
    ring = {result.name: result.verdict for result in prove_ring(30.0)}
    exchange = {result.name: result.verdict for result in prove_ulysses(30.0)}
    assert set(ring.values()) | set(exchange.values()) == {"proved"}
    assert set(ring) - set(exchange) == {"deadlock-freedom"}
    assert "proved for every size" in run("verify", "ring-attention").out


RING = RingOfKeys()
WRONG_RINGS: dict[str, tuple[RingOfKeys, str, str]] = {
    "always the keys of the first step": (
        replace_map(RING, keys=lambda r, k, p: r), "coverage", "'once', got formulas without it "
        "at p=2",
    ),
    "two parts a step": (
        replace_map(RING, keys=lambda r, k, p: (r + 2 * k) % p), "coverage", "'once'",
    ),
    "all devices the same keys": (
        replace_map(RING, keys=lambda r, k, p: k), "completion", "'alone'",
    ),
    "the keys of the next device first": (
        replace_map(RING, keys=lambda r, k, p: (r + k + 1) % p), "alignment", "'first'",
    ),
    "keys the other way round": (
        replace_map(RING, keys=lambda r, k, p: (r - k) % p), "placement", "'arrives', got "
        "formulas without it at p=3",
    ),
    "sent to the wrong side": (
        replace_map(RING, target=lambda r, p: (r + 1) % p), "deadlock-freedom", "'neighbours', "
        "got formulas without it at p=3",
    ),
    "received from itself": (
        replace_map(RING, source=lambda r, p: r, target=lambda r, p: r), "deadlock-freedom",
        "'others', got formulas without it at p=2",
    ),
    "a gradient sent before it is computed": (
        replace_map(RING, backward=(*BACKWARD[:3], "post gradient", "keys", "await keys")),
        "completion", "'in-time'",
    ),
    "a gradient awaited after it is added to": (
        replace_map(RING, backward=("post keys", "query", "keys", "await gradient",
                                    "post gradient", "await keys")), "races", "'in-time'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_RINGS)
def test_wrong_rings_are_refuted_on_the_fewest_devices(name: str) -> None:
    ring, refuted, text = WRONG_RINGS[name]
    result = next(result for result in prove_ring(30.0, ring) if result.name == refuted)
    assert result.verdict == "refuted"
    assert (result.counterexample or "").startswith(f"expected {text}")


def test_other_rings_that_are_right_are_proved() -> None:
    reversed_ring = RingOfKeys(
        keys=lambda r, k, p: (r - k) % p,
        source=lambda r, p: (r - 1) % p,
        target=lambda r, p: (r + 1) % p,
    )
    early = replace_map(RING, backward=("await gradient", *BACKWARD[:2], *BACKWARD[3:]))
    for ring in (reversed_ring, early):
        assert {result.verdict for result in prove_ring(30.0, ring)} == {"proved"}


@pytest.mark.parametrize(
    ("exchange", "refuted"),
    [
        (HeadExchange(received=lambda rank, member, to_heads: (rank, member)), "placement"),
        (HeadExchange(sent=lambda rank, member, to_heads: (rank, rank)), "completion"),
        (HeadExchange(received=lambda rank, member, to_heads: (rank, rank)), "races"),
    ],
)
def test_wrong_exchanges_are_refuted(exchange: HeadExchange, refuted: str) -> None:
    results = {result.name: result.verdict for result in prove_ulysses(30.0, exchange)}
    assert results[refuted] == "refuted"
