"""Stream-K: exact against dense, proved at every size, and wrong ones refuted."""

from __future__ import annotations

from collections import Counter
from time import perf_counter

import pytest
from command import run
from profiles import draws, long
from stream_k_cases import (
    WITH_FIX_UP,
    WRONG_RULES,
    LastOwns,
    Shifted,
    generated,
    shifted_rules,
)

import primepar
from primepar.partition.stream_k import StreamK
from primepar.partition.work_ranges import VARIANTS, WorkSplit
from primepar.verify.every_size.lemmas import failure
from primepar.verify.every_size.stream_k import lemmas, prove
from primepar.verify.every_size.stream_k_faults import smallest_fault

SECONDS = 20.0


def test_generated_sizes_are_exact_and_proved() -> None:
    methods = generated(draws(150))
    assert len({method.text for method in methods}) > 0.9 * len(methods)
    wrong = []
    for method in methods:
        program = method.program()
        report = primepar.verify(program)
        if report.verdict != "proved" or not primepar.check(program).equal:
            wrong.append(method.text)
    assert wrong == []
    partial = [method for method in methods if method.facts()["partial tiles"] != "0"]
    assert len(partial) > len(methods) / 3


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_parts_are_what_the_formulas_state(variant: str) -> None:
    for workers in range(1, 8):
        for tiles in range(1, 18):
            for iterations in (1, 2, 3, 5, 8):
                split = WorkSplit(workers, tiles, iterations, variant)  # type: ignore[arg-type]
                assert_formulas(split)


def assert_formulas(split: WorkSplit) -> None:
    rule, share, iterations = split.rule, split.share, split.iterations
    first = 0 if split.shared_first else split.whole_tiles
    counted: Counter[tuple[int, int]] = Counter()
    for worker, parts in enumerate(split.parts):
        shared = [part for part in parts if first <= part.tile < first + split.shared_tiles]
        assert len(parts) - len(shared) <= split.waves
        for part in parts:
            counted.update((part.tile, i) for i in range(part.start, part.stop))
        for part in shared:
            tile = part.tile - first
            line = range(tile * iterations + part.start, tile * iterations + part.stop)
            assert all(rule.takes(worker, iteration, share) for iteration in line)
            assert rule.owns(part.owner, tile, share, iterations)
            others = [x for x in range(split.workers) if x != worker
                      and any(p.tile == part.tile for p in split.parts[x])]  # fmt: skip
            assert list(part.senders) == (others if part.owner == worker else [])
        loads = sum(part.stop - part.start for part in parts)
        assert loads <= split.longest
    every = {(tile, i): 1 for tile in range(split.tiles) for i in range(iterations)}
    assert counted == every
    assert max(sum(part.stop - part.start for part in parts) for parts in split.parts) == (
        split.longest
    )
    if split.variant == "two-tile" and split.tiles >= split.workers:
        assert max(len(part.senders) for parts in split.parts for part in parts) <= 1


def test_all_lemmas_are_proved_for_every_size() -> None:
    end = perf_counter() + SECONDS
    assert [failure(lemma, end) for lemma in lemmas()] == [None] * len(lemmas())
    report = primepar.verify("stream-k")
    assert report.verdict == "proved"
    sizes = StreamK().text.partition(":")[2]
    assert report.scope == f"every size, or for {sizes} where stated"
    every = {"coverage", "completion", "deadlock-freedom", "races", "workers of a tile"}
    proved = {result.name for result in report.properties if "stream-k:" not in str(result.reason)}
    assert proved == every


@pytest.mark.parametrize("kind", WRONG_RULES)
def test_a_wrong_rule_is_refuted_with_the_smallest_sizes(kind: str) -> None:
    rule, message = WRONG_RULES[kind]
    first = next(result for result in prove(SECONDS, rule) if result.verdict == "refuted")
    assert f"{first.name}: {first.counterexample}" == message


def test_with_the_last_worker_as_owner_waits_are_a_chain_that_ends() -> None:
    class Chain(StreamK, frozen=True):
        rule = LastOwns()

    program = Chain(**WITH_FIX_UP.sizes).program()
    assert primepar.verify(program).verdict == "proved"
    assert primepar.check(program).equal


@pytest.mark.parametrize(
    "rule", [Shifted(at_begin=-1), Shifted(at_tile=1), Shifted(at_end=-1, at_decisive=1)]
)
def test_what_is_proved_of_a_shifted_rule_has_no_fault(rule: Shifted) -> None:
    assert_no_fault(rule)


@long
def test_what_is_proved_of_any_shifted_rule_has_no_fault() -> None:
    assert len(set(shifted_rules()) - {Shifted()}) == 34
    for rule in shifted_rules():
        assert_no_fault(rule)


def assert_no_fault(rule: Shifted) -> None:
    results = list(prove(SECONDS, rule))
    proved = [result.name for result in results if result.verdict == "proved"]
    assert [smallest_fault(rule, name) for name in proved] == [None] * len(proved)
    assert (rule == Shifted()) == (len(proved) == len(results))


def test_what_it_shows() -> None:
    shown = run("show", "stream-k:variant=one-tile").out
    assert shown.startswith(
        "stream-k:workers=4,M=6,N=8,K=6,tile_m=2,tile_n=2,tile_k=2,variant=one-tile\n"
        "  iterations  9 tiles of 4, at most 9 on a worker\n"
        "  utilisation  1 = 100.0 %, by whole tiles 3/4 = 75.0 %\n"
        "  partial tiles  3\n"
        "  workers of a tile  at most 4\n"
    )


def test_a_program_that_no_memory_holds_is_refused() -> None:
    sizes = ",".join(f"{name}=2147483647" for name in ("M", "N", "tile_m", "tile_n"))
    assert run("check", f"stream-k:{sizes}") == (
        2, "", "primepar: error: expected a mesh and a shape that fit into memory, got larger "
        "ones: take smaller ones\n",
    )  # fmt: skip
