"""FLUX as programs: exact, proved for every size, equal to the formulas; wrong orders refuted.

Programs with a wrong instruction are in `test_mutants`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace as replace_order
from random import Random

import pytest
from command import run
from msgspec.structs import replace
from profiles import IS_LONG, draws

from primepar.partition import flux
from primepar.partition.flux import FluxGather, FluxScatter
from primepar.reference.check import check_program
from primepar.schedule import Program
from primepar.schedule.program import Compute, Free, IRecv, ISend, Wait
from primepar.verify import verify_program
from primepar.verify.every_size.flux import GATHER, SCATTER, RingOrder, prove_order

METHODS = (FluxGather, FluxScatter)
Flux = FluxGather | FluxScatter


def sized(kind: type[Flux], devices: int, chunks: int, *counts: int) -> Flux:
    """The method with sizes that fit: M, N and K are multiples of what divides them."""
    m, n, k = counts
    return kind(
        devices=devices, chunks=chunks, M=devices * chunks * m, N=devices * n, K=devices * k
    )


@pytest.mark.parametrize("kind", METHODS)
def test_generated_sizes_are_exact_with_traffic_and_memory_of_the_formulas(
    kind: type[Flux],
) -> None:
    random = Random(14)
    for _ in range(draws(60)):
        method = sized(kind, *(random.randint(1, most) for most in (7, 5, 3, 3, 3)))
        report = check_program(method.program())
        assert report.equal, report.message
        assert set(report.sent) == {method.sent}
        assert set(report.peak) == {method.held}


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize(("devices", "chunks"), [(1, 1), (1, 3), (2, 1), (3, 2), (4, 3), (8, 2)])
def test_programs_are_proved_with_memory_and_traffic(
    kind: type[Flux], devices: int, chunks: int
) -> None:
    report = verify_program(sized(kind, devices, chunks, 1, 2, 3).program())
    names = [result.name for result in report.properties if result.verdict == "proved"]
    assert names == ["coverage", "placement", "completion", "deadlock-freedom", "races", "memory",
                     "traffic"]  # fmt: skip


@pytest.mark.parametrize("order", [GATHER, SCATTER])
def test_orders_are_proved_for_every_size(order: RingOrder) -> None:
    results = list(prove_order(order, 30.0))
    assert [(result.name, result.verdict) for result in results] == [
        (name, "proved")
        for name in ("coverage", "placement", "completion", "deadlock-freedom", "races")
    ]


WRONG_ORDERS: dict[str, tuple[RingOrder, str, str]] = {
    "two steps at a time": (
        replace_order(
            GATHER,
            tile=lambda r, k, p: (r + 2 * k) % p,
            source=lambda r, k, p: (r + 2 * k + 2) % p,
            target=lambda r, k, p: (r - 2 * k - 2) % p,
        ),
        "coverage",
        "expected 'once', got formulas without it at p=2, ",
    ),
    "the ring the other way round for the sender alone": (
        replace_order(GATHER, target=lambda r, k, p: (r + k + 1) % p),
        "deadlock-freedom",
        "expected 'matched', got formulas without it at p=3, ",
    ),
    "the products one step late": (
        replace_order(GATHER, tile=lambda r, k, p: (r + k - 1) % p),
        "placement",
        "expected 'own', got formulas without it at p=2, ",
    ),
    "the own tile first, as in the all-gather": (
        replace_order(SCATTER, tile=GATHER.tile),
        "completion",
        "expected 'own', got formulas without it at p=2, ",
    ),
    "all to the next device": (
        replace_order(
            SCATTER, source=lambda r, k, p: (r - 1) % p, target=lambda r, k, p: (r + 1) % p
        ),
        "deadlock-freedom",
        "expected 'channel', got formulas without it at p=3, ",
    ),
    "a wait before its signal": (
        replace_order(GATHER, post=1, wait=0, awaited=lambda k: k),
        "deadlock-freedom",
        "expected 'signal', got formulas without it at p=2, ",
    ),
    "a wait one step late": (
        replace_order(GATHER, awaited=lambda k: k + 2),
        "placement",
        "expected 'arrives', got formulas without it at p=2, ",
    ),
    "a wait after the last step": (
        replace_order(SCATTER, awaited=lambda k: k + 2),
        "deadlock-freedom",
        "expected 'ends', got formulas without it at p=2, ",
    ),
    "a product before its wait": (
        replace_order(GATHER, wait=2, product=1),
        "races",
        "expected 'arrives', got formulas without it at p=2, ",
    ),
    "a part received into a buffer in flight": (
        replace_order(SCATTER, post=1, wait=2),
        "races",
        "expected 'again', got formulas without it at p=2, ",
    ),
    "a tile sent before it is computed": (
        replace_order(SCATTER, post=0, product=1, wait=2),
        "completion",
        "expected 'departs', got formulas without it at p=2, ",
    ),
}


@pytest.mark.parametrize("name", WRONG_ORDERS)
def test_wrong_orders_are_refuted_on_the_fewest_devices(name: str) -> None:
    order, named, text = WRONG_ORDERS[name]
    results = {result.name: result for result in prove_order(order, 30.0)}
    assert results[named].verdict == "refuted"
    assert (results[named].counterexample or "").startswith(text)


def test_the_other_way_round_the_ring_is_proved_too() -> None:
    backwards = replace_order(
        GATHER,
        tile=lambda r, k, p: (r - k) % p,
        source=lambda r, k, p: (r - k - 1) % p,
        target=lambda r, k, p: (r + k + 1) % p,
    )
    at_once = replace_order(GATHER, awaited=lambda k: k)
    for order in (backwards, at_once):
        assert {result.verdict for result in prove_order(order, 30.0)} == {"proved"}


def listed(order: RingOrder, rank: int, devices: int, chunks: int) -> Iterator[tuple[object, ...]]:
    """What a rank does by the proof: its posts, waits and products, in order."""
    for step in range(devices):
        tiles = [("product", order.tile(rank, step, devices), chunk) for chunk in range(chunks)]
        for chunk, tile in enumerate(tiles):
            post = [
                ("receive", order.source(rank, step, devices), step, chunk),
                ("send", order.target(rank, step, devices), step, chunk),
            ] * (step < devices - 1)
            posted = [before for before in range(devices - 1) if order.awaited(before) == step]
            waits = [("wait", before, chunk) for before in posted for _ in ("in", "out")]
            parts: dict[int, list[tuple[object, ...]]] = {
                order.post: [*post],
                order.wait: [*waits],
                order.product: [tile],
            }
            yield from (node for position in sorted(parts) for node in parts[position])


def done(program: Program, rank: int, chunks: int) -> Iterator[tuple[object, ...]]:
    """What the program of a rank does, in the same words."""
    posted: dict[str, tuple[int, int]] = {}
    count = 0
    for node in program.programs[rank]:
        if isinstance(node, IRecv | ISend):
            posted[node.request] = place = divmod(count // 2, chunks)
            count += 1
            yield ("receive" if isinstance(node, IRecv) else "send", node.peer, *place)
        elif isinstance(node, Wait):
            yield ("wait", *posted[node.request])
        elif isinstance(node, Compute) and node.phase is not None:
            yield ("product", *divmod((node.sub_operator or {})["M"], chunks))


@pytest.mark.parametrize(("kind", "order"), [(FluxGather, GATHER), (FluxScatter, SCATTER)])
def test_the_programs_are_what_the_proof_is_about(kind: type[Flux], order: RingOrder) -> None:
    for devices in range(1, 17) if IS_LONG else (1, 2, 3, 4, 5, 16):
        for chunks in range(1, 9) if IS_LONG else (1, 2, 5):
            program = sized(kind, devices, chunks, 1, 1, 1).program()
            for rank in range(devices):
                expected = list(listed(order, rank, devices, chunks))
                assert list(done(program, rank, chunks)) == expected


def test_whose_chunk_is_where_by_hand() -> None:
    assert [flux.gathered_from(2, step, 4) for step in range(4)] == [2, 3, 0, 1]
    assert [flux.opposite(2, step, 4) for step in range(3)] == [1, 0, 3]
    assert [flux.computed_for(2, step, 4) for step in range(4)] == [3, 0, 1, 2]
    assert [flux.opposite(2, step, 4) for step in range(3)] == [1, 0, 3]


@pytest.mark.parametrize("kind", METHODS)
def test_unharmed_variants_are_proved(kind: type[Flux]) -> None:
    """All waits for sends at the end, and other tags on both ends."""
    given = sized(kind, 3, 2, 1, 1, 1).program()
    lists = []
    for nodes in given.programs:
        tagged = [
            replace(node, tag=7) if isinstance(node, ISend | IRecv) else node for node in nodes
        ]
        sends = [node for node in tagged if isinstance(node, Wait) and node.request[0] == ">"]
        frees = [node for node in tagged if isinstance(node, Free) and kind is FluxScatter]
        kept = [node for node in tagged if node not in sends and node not in frees]
        outputs = [node for node in frees if not node.block.endswith("'")]
        lists.append((*kept, *sends, *outputs))
    made = replace(given, programs=tuple(lists), memory=None)
    assert verify_program(made).verdict == "proved"


def test_the_commands_know_both() -> None:
    names = ("flux-gather", "flux-scatter")
    for name in names:
        assert run("verify", name).out.startswith(f"{name}: proved for every size, or for devices=")
        assert run("check", name).code == 0
    text = run("list").out
    assert all(name in text for name in names)
