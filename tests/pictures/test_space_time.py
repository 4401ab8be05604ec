"""The space-time grid shows what the program does: every product, hop and collective, once."""

from __future__ import annotations

from collections import Counter
from itertools import product
from xml.etree import ElementTree

import pytest

from primepar.partition import parse_sequence
from primepar.pictures.grid_svg import grid_svg
from primepar.pictures.space_time import SpaceTime, grid_text, head, space_time
from primepar.schedule import Program, lower
from primepar.schedule.operators import PHASES
from primepar.schedule.program import (
    AllReduce,
    Barrier,
    Compute,
    Group,
    Instruction,
    IRecv,
    ISend,
    Recv,
    Send,
    Wait,
)
from primepar.schedule.sequence import Sequence

SVG = "{http://www.w3.org/2000/svg}"
SEQUENCES = ["P2x2", "P3x3", "K,P2x2", "P2x2,P2x2", "N4", "B,M,N,K"]
WITH_HOMES = ["S2x2", "S3x3", "T2x2x2", "C2x2x2", "Os3x3", "Is3x3", "Ks4", "M2,S2x2", "S2x2,P2x2",
              "S2x3"]  # fmt: skip


def grid_of(sequence: Sequence) -> SpaceTime:
    return space_time(lower(sequence), str(sequence), steps=sequence.steps)


def program(*ranks: tuple[Instruction, ...]) -> Program:
    return Program("primepar-program", 1, len(ranks), ranks)


ONE = Compute(("I", "W"), "O", "forward", {"M": 0, "N": 0, "K": 0})


@pytest.mark.parametrize("text", [*SEQUENCES, *WITH_HOMES])
def test_steps_are_those_of_the_map_and_what_only_moves_is_none(text: str) -> None:
    sequence = parse_sequence(text)
    steps: dict[str, list[int]] = {phase: [] for phase in PHASES}
    for column in grid_of(sequence).cells:
        number = head(column).step
        if number is not None:
            steps[head(column).phase].append(number)
        for cell in filter(None, column):
            assert cell.step == number
            slices = {} if number is None else sequence.slices(cell.phase, cell.rank, number)
            blocks = [dict(zip(slices, index, strict=True)) for index in product(*slices.values())]
            assert [one.sub_operator for one in cell.products] == (blocks if slices else [])
    assert list(steps.values()) == [list(range(sequence.steps))] * 3
    assert text in WITH_HOMES or len(grid_of(sequence).cells) == 3 * sequence.steps


def test_a_picture_writes_moves_over_a_column_without_products() -> None:
    picture = grid_svg(grid_of(parse_sequence("S2x2")).only("backward"))
    over = [mark.text for mark in ElementTree.fromstring(picture).iter(f"{SVG}text")]
    columns = [name for name in over if name and (name == "moves" or name.startswith("step"))]
    assert columns == ["step 0", "step 1", "moves", "moves"]


@pytest.mark.parametrize("text", SEQUENCES)
def test_text_names_every_product_hop_and_collective_of_the_program(text: str) -> None:
    sequence = parse_sequence(text)
    texts = grid_text(grid_of(sequence), width=10_000)
    nodes = [node for nodes in lower(sequence).programs for node in nodes]
    kinds = Counter(node.__struct_config__.tag for node in nodes)
    products = sum(isinstance(node, Compute) and node.phase is not None for node in nodes)
    assert texts.count(" += ") == products + 3  # and one equation over each phase
    assert texts.count(" -> ") == kinds["isend"]
    assert texts.count(" <- ") == kinds["irecv"]
    assert texts.count("all_reduce") == kinds["all_reduce"]


@pytest.mark.parametrize("text", SEQUENCES)
def test_a_picture_is_xml_with_every_cell_hop_and_collective_once(text: str) -> None:
    sequence = parse_sequence(text)
    grid = grid_of(sequence)
    root = ElementTree.fromstring(grid_svg(grid))
    titles = Counter(
        f"{mark.tag.removeprefix(SVG)} {title}"
        for mark in root.iter()
        if (title := mark.findtext(f"{SVG}title"))
    )
    assert set(titles.values()) <= {1, 2}  # the same hop may come in two phases
    nodes = [node for nodes in lower(sequence).programs for node in nodes]
    groups = {(*node.group, node.block) for node in nodes if isinstance(node, AllReduce)}
    kinds = Counter(title.split()[0] for title in titles.elements())
    assert kinds["rect"] == 3 * sequence.steps * sequence.ranks
    assert kinds["path"] == sum(isinstance(node, ISend) for node in nodes) + len(groups)


def test_tables_wider_than_the_page_are_cut_between_steps() -> None:
    texts = grid_text(grid_of(parse_sequence("P4x4")), width=100)
    assert max(map(len, texts.splitlines())) <= 100
    assert texts.count("forward, continued") == 1
    assert texts.count(" += ") == 3 * 4 * 16 + 3


def test_only_one_phase_is_kept() -> None:
    sequence = parse_sequence("P2x2")
    assert grid_of(sequence).only("backward") == SpaceTime(
        "P2x2", ({},) * 4, grid_of(sequence).cells[2:4]
    )


# Programs that no map gave


def test_a_new_step_starts_at_the_first_message_or_product_after_a_wait() -> None:
    grid = space_time(
        program(
            (ISend(1, "I", request="a"), ONE, Wait("a"), ONE, ONE, Recv(1, "J"), ONE),
            (IRecv(0, "I", request="a"), Wait("a"), ONE, ONE, ONE, Send(0, "J"), ONE),
        ),
        "two ranks",
    )
    counts = [[len(cell.products) if cell else 0 for cell in column] for column in grid.cells]
    assert counts == [[1, 3], [2, 1], [1, 0]]


def test_blocking_messages_and_groups_are_distinguished_from_posted_ones() -> None:
    swap = Group((Send(1, "A"), Recv(1, "B")))
    back = Group((Send(0, "A"), Recv(0, "B")))
    assert grid_text(space_time(program((swap,), (back,)), "swap")) == (
        "swap\n"
        "\n"
        "messages\n"
        "device   moves\n"
        "----------------------\n"
        "0          send A -> 1\n"
        "           recv B <- 1\n"
        "1          send A -> 0\n"
        "           recv B <- 0\n"
    )


def test_a_hop_ends_under_the_name_that_the_receiver_gives_it() -> None:
    picture = grid_svg(space_time(program((Send(1, "A"),), (Recv(0, "B"),)), "one message"))
    written = [mark.text for mark in ElementTree.fromstring(picture).iter(f"{SVG}text")]
    assert {"A", "B"} <= set(written)


def test_additions_and_barriers_are_listed() -> None:
    texts = grid_text(space_time(program((Compute(("A", "B"), "C"), Barrier((0,)))), "sum"))
    assert texts.splitlines()[-2:] == ["0        add C += A + B", "           barrier over 0"]


def test_an_empty_program_is_drawn() -> None:
    grid = space_time(program((), ()), "nothing")
    assert grid_text(grid) == "nothing\n"
    assert ElementTree.fromstring(grid_svg(grid)).tag == f"{SVG}svg"
