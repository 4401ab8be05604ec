"""Methods with sizes: named, listed, shown, checked, proved for every size or for some."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Literal

import pytest
from command import run
from msgspec import Meta
from msgspec.structs import replace

import primepar
from primepar.errors import MethodError, TargetError
from primepar.partition import METHODS, parse_method
from primepar.partition.flux import FluxGather
from primepar.partition.local_sgd import LocalSGD
from primepar.partition.pipeline.gpipe import GPipe
from primepar.partition.stream_k import StreamK
from primepar.schedule.program import Compute, Instruction, IRecv, ISend, Program, Wait
from primepar.schedule.program_method import ProgramMethod
from primepar.verify.every_size import proof
from primepar.verify.report import PropertyResult


class Relay(ProgramMethod, frozen=True):
    """One sum that passes through a line of ranks.

    Each rank adds its product to the partial sum that it receives.
    """

    name = "relay"
    ranks: Annotated[int, Meta(ge=1, le=8)] = 3
    order: Literal["rising", "falling"] = "rising"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ranks > 4 and self.order == "falling":
            raise MethodError(f"relay: expected at most 4 ranks, got {self.ranks}: write ranks=4")

    def program(self) -> Program:
        ranks = self.ranks
        line = range(ranks) if self.order == "rising" else range(ranks)[::-1]
        return Program(
            format="primepar-program",
            version=1,
            ranks=ranks,
            programs=tuple(_relay(rank, list(line)) for rank in range(ranks)),
            grid={"forward": {"M": 1, "N": ranks, "K": 1}},
            shape={"M": 2, "N": 2 * ranks, "K": 2},
            initial=tuple((f"I[0,{rank}]", f"W[{rank},0]") for rank in range(ranks)),
        )

    def facts(self) -> dict[str, str]:
        return {"messages": str(self.ranks - 1)}


def _relay(rank: int, line: list[int]) -> tuple[Instruction, ...]:
    place = line.index(rank)
    product = Compute(
        (f"I[0,{rank}]", f"W[{rank},0]"), "O[0,0]", "forward", {"M": 0, "N": rank, "K": 0}
    )
    nodes: list[Instruction] = []
    if place:
        nodes += [IRecv(line[place - 1], "O[0,0]", request="a"), Wait("a")]
    nodes.append(product)
    if place + 1 < len(line):
        nodes += [ISend(line[place + 1], "O[0,0]", request="b"), Wait("b")]
    return tuple(nodes)


@pytest.fixture(autouse=True)
def relay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "relay", Relay)


def test_sizes_are_read_from_text_and_have_defaults() -> None:
    assert parse_method("relay") == Relay()
    method = parse_method("relay:ranks=4, order=falling")
    assert method == Relay(ranks=4, order="falling")
    assert method is not None
    assert method.text == "relay:ranks=4,order=falling"
    assert parse_method("megatron") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("relay:rank=4", "relay: expected sizes out of ranks, order, got 'rank': write ranks"),
        ("relay:colour=4", "relay: expected sizes out of ranks, order, got 'colour': leave it out"),
        (
            "relay:ranks=0",
            "relay: expected ranks to be an integer from 1 to 8, got '0': write ranks=3",
        ),
        (
            "relay:ranks=x",
            "relay: expected ranks to be an integer from 1 to 8, got 'x': write ranks=3",
        ),
        (
            "relay:order=up",
            "relay: expected order to be one of rising, falling, got 'up': write order=rising",
        ),
        (
            "relay:4",
            "relay:4: expected size=value, each size once, got '4': write "
            "relay:ranks=3,order=rising",
        ),
        (
            "relay:ranks=2,ranks=3",
            "relay:ranks=2,ranks=3: expected size=value, each size once, got 'ranks=3': write "
            "relay:ranks=3,order=rising",
        ),
        (
            "relay:ranks=5,order=falling",
            "relay: expected at most 4 ranks, got 5: write ranks=4",
        ),
    ],
)  # fmt: skip
def test_a_wrong_size_is_refused(text: str, message: str) -> None:
    with pytest.raises(MethodError) as caught:
        primepar.show(text)
    assert str(caught.value) == message


NOT_FITTING = {
    "flux-gather:devices=3": "flux-gather: expected M to be a multiple of devices * chunks = 6, "
    "got 64: write M=66",
    "flux-scatter:devices=3,M=66": "flux-scatter: expected N to be a multiple of devices = 3, got "
    "32: write N=33",
    "interleaved-1f1b:stages=4,micro_batches=6": "interleaved-1f1b: expected micro_batches that "
    "are a multiple of stages=4, got 6: write micro_batches=8",
    "local-sgd:steps=4,warm_up=5": "local-sgd: expected a warm_up of at most 4 steps, the whole "
    "run, got 5: write warm_up=4, or more steps",
    "patrickstar:chunk=3": "chunk: expected at least the 4 elements of the largest tensor, W1, got "
    "3: take 4 or more",
    "patrickstar:device=27": "device memory: expected at least 28 elements, which one instruction "
    "needs together with what cannot move, got 27: take 28 or more, or smaller chunks",
    "stream-k:tile_m=9": "stream-k: expected tiles within the matrix, tile_m <= M=6, got 9: write "
    "tile_m=6",
    "stream-k:M=4096,N=4096,K=4096": "stream-k: expected at most 1000000 iterations in a program, "
    "got 8589934592: give it larger tiles",
    "ulysses:devices=4,heads=6": "ulysses: expected heads to be a multiple of devices = 4, got 6: "
    "write heads=8",
}


@pytest.mark.parametrize("command", ["verify", "check", "show"])
@pytest.mark.parametrize("target", NOT_FITTING)
def test_sizes_that_do_not_fit_one_another_end_in_one_line(target: str, command: str) -> None:
    assert run(command, target) == (2, "", f"primepar: error: {NOT_FITTING[target]}\n")


def test_a_method_is_listed_shown_checked_and_simulated() -> None:
    listed = run("list").out
    assert "relay\n  One sum that passes through a line of ranks.\n  sizes     ranks=3" in listed
    shown = run("show", "relay:ranks=2")
    assert shown.code == 0
    assert shown.out.startswith("relay:ranks=2,order=rising\n  messages  1\n\n")
    assert run("check", "relay").code == 0
    assert primepar.check(Relay(ranks=2)).equal
    assert len(primepar.lower(Relay).programs) == 3
    assert primepar.simulate("relay", "h200-8").seconds > 0


def test_without_sizes_it_is_proved_for_every_size_and_with_sizes_for_these(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def every_size(seconds: float) -> Iterable[PropertyResult]:
        seen.append(seconds)
        yield PropertyResult("deadlock-freedom", "proved", 0.0, reason="by a time function")

    monkeypatch.setattr(proof, "EVERY_SIZE", {"relay": every_size})
    heading = "relay: proved for every size, or for ranks=3,order=rising where stated\n"
    report = primepar.verify(Relay, timeout=30)
    assert seen == [30]
    assert str(report).startswith(heading)
    assert report["deadlock-freedom"].reason == "by a time function"
    assert report["coverage"].reason == "of the program of relay:ranks=3,order=rising"
    assert str(primepar.verify("relay")).startswith(heading)
    assert str(primepar.verify("relay:ranks=2")).startswith("relay:ranks=2: proved\n")
    assert run("verify", "relay").out.startswith(heading)
    assert run("verify", "relay:ranks=2").out.startswith("relay:ranks=2: proved as given\n")


def test_without_a_proof_for_every_size_the_default_sizes_are_stated() -> None:
    report = primepar.verify(Relay)
    assert str(report).startswith("relay: proved for ranks=3,order=rising\n")


def test_a_wrong_program_of_the_default_sizes_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    def every_size(seconds: float) -> Iterable[PropertyResult]:
        yield PropertyResult("coverage", "proved", 0.0)

    class Forgetful(Relay, frozen=True):
        """It leaves out the last product."""

        def program(self) -> Program:
            program = super().program()
            return replace(program, programs=(*program.programs[:-1], program.programs[-1][:-1]))

    monkeypatch.setattr(proof, "EVERY_SIZE", {"relay": every_size})
    assert primepar.verify(Forgetful)["coverage"].verdict == "refuted"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("show", "relay", "--side", "2"),
            "relay: expected no --side, as a method has its own sizes, got --side 2: leave it out",
        ),
        (
            ("check", "relay", "--side", "2"),
            "relay: expected no --side, as a method has its own mesh, got --side 2: leave it out",
        ),
        (
            ("verify", "relay", "--side", "2"),
            "relay: expected no --side, as a method without sizes is meant for each of them, got "
            "--side 2: leave it out",
        ),
        (
            ("verify", "relay", "--buffered"),
            "relay: expected no --buffered, which a program has: give sizes, got --buffered: leave "
            "it out",
        ),
        (
            ("verify", "relay", "--certificate", "c.json"),
            "relay: expected sizes, as --certificate is of one program, got none: write "
            "relay:ranks=3,order=rising",
        ),
        (
            ("show", "relays"),
            "expected the name of a primitive, got 'relays': write relay",
        ),
    ],
)
def test_options_that_a_method_does_not_have_are_refused(
    arguments: tuple[str, ...], message: str
) -> None:
    result = run(*arguments)
    assert (result.code, result.err) == (2, f"primepar: error: {message}\n")


def test_a_class_in_python_is_the_default_sizes_where_one_program_is_meant() -> None:
    assert str(primepar.show(Relay)).startswith("relay:ranks=3,order=rising\n")
    with pytest.raises(TargetError) as caught:
        primepar.show(Relay, side=2)
    assert str(caught.value) == (
        "relay: expected no side, as a method has its own sizes, got side=2: leave it out"
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Relay(ranks=0),
            "relay: expected ranks to be an integer from 1 to 8, got 0: write ranks=3",
        ),
        (
            lambda: LocalSGD(period=0),
            "local-sgd: expected period to be an integer from 1 to 9223372036854775807, got 0: "
            "write period=4",
        ),
        (
            lambda: StreamK(variant="other"),  # type: ignore[arg-type]
            "stream-k: expected variant to be one of basic, data-parallel, one-tile, two-tile, "
            "got 'other': write variant=basic",
        ),
        (
            lambda: GPipe(stages="2"),  # type: ignore[arg-type]
            "gpipe: expected stages to be an integer from 1 to 64, got '2': write stages=4",
        ),
        (
            lambda: FluxGather(devices=True),
            "flux-gather: expected devices to be an integer from 1 to 256, got True: "
            "write devices=4",
        ),
    ],
)
def test_sizes_out_of_bounds_are_refused_in_python_too(
    make: Callable[[], ProgramMethod], message: str
) -> None:
    with pytest.raises(MethodError) as caught:
        make()
    assert str(caught.value) == message
