"""The page's own evaluator of maps gives what Python gives: the same moves, the same sentences."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence as Several
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from msgspec.structs import replace
from script_module import load

from primepar import Primitive
from primepar.api.page_data import map_data
from primepar.commands.exercise_catalog import exercises
from primepar.errors import PrimitiveError
from primepar.partition import PRIMITIVES
from primepar.pictures.page_html import FOLDER, SCRIPTS
from primepar.preflight.cases import CASES
from primepar.schedule import Movement, Sequence, tracing
from primepar.schedule.expression import evaluate, parse
from primepar.schedule.matching import Matches
from primepar.schedule.movement import Hop, Return
from primepar.schedule.operators import PHASES, block_name
from primepar.schedule.waits import WaitGraph, cycle_of
from primepar.schedule.words import map_sentence
from primepar.verify import verify_primitive
from primepar.verify.primitive.smallest_mesh import FAULTS, meshes_of, smallest_faults

PUZZLES = list(load(Path(__file__).resolve().parents[2] / "docs" / "puzzles.py").puzzles())
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(
    NODE is None, reason="node runs the page's evaluator, and is missing"
)
MAPS = min(2_000, 8 * settings().max_examples)
ANSWERS = """
const fs = require("fs"), vm = require("vm");
for (const path of process.argv.slice(1)) vm.runInThisContext(fs.readFileSync(path, "utf8"), path);
const {cases} = JSON.parse(fs.readFileSync(0, "utf8"));
console.log(JSON.stringify(vm.runInThisContext("(answers)")(cases)));
"""
JUDGE = """

function answers(cases) {
  return cases.map(([source, sides]) => {
    try {
      const map = parseMap(source);
      if (!sides) {
        const {faults, meshes} = smallestFaults(map);
        return {faults: faults.map((one) => [one.property, one.sentence]), meshes};
      }
      const mesh = new MeshMap(map, sides), hop = (one) =>
        [mesh.blockName(one.tensor, one.block), one.source, one.target];
      const phases = PHASES.map((phase) => mesh.moves(phase)).map((moves) => [
        moves.prologue.map(hop), moves.operands.map((some) => some.map(hop)),
        moves.partials.map((some) => some.map(hop)),
        moves.returns.map((some) => some.map(
          (one) => [mesh.blockName(one.tensor, one.block), one.parts]))]);
      const faults = Object.values(FAULTS).map((search) => search(mesh)?.sentence ?? null);
      return {faults, phases};
    } catch (error) {
      if (!(error instanceof MapError)) throw error;
      return {error: error.message};
    }
  });
}
"""


PYTHON_OF = "function answers(cases) { return cases.map(([source]) => pythonOf(source)); }"
WAITS = """
function answers(cases) {
  return cases.map(([puzzle, orders]) => {
    const {kind, places} = judgeOrders(puzzle, orders);
    return [kind, places.map(([rank]) => rank)];
  });
}
"""
ON_LISTS = """
import json, sys, types
module = types.ModuleType("numpy")
exec(compile(open(sys.argv[1]).read(), "numpy", "exec"), module.__dict__)
sys.modules["numpy"], sys.modules["numpy.typing"] = module, types.ModuleType("numpy.typing")
sys.modules["numpy.typing"].NDArray = module.typing.NDArray
from primepar import Primitive
from primepar.partition import PRIMITIVES
from primepar.verify import verify_primitive
reports = []
for name in ("primepar", "three-d", "sequence-row"):
    members = {"sent": Primitive.sent, "held": Primitive.held}
    report = verify_primitive(type("Bare", (PRIMITIVES[name],), members)())
    reports.append([[one.name, one.verdict, one.certified] for one in report.properties])
print(json.dumps(reports))
"""


def in_node(
    cases: Several[tuple[dict[str, Any], list[int] | None]],
    folder: Path,
    judge_text: str = JUDGE,
    *more: Path,
) -> list[Any]:
    """What the page's evaluator answers to all cases, in one process."""
    judge = folder / "judge.js"
    judge.write_text(judge_text)
    files = [FOLDER / name for name in ("expression.js", "mesh_maps.js", "sentences.js")]
    files += more
    assert NODE is not None
    done = subprocess.run(
        [NODE, "-e", ANSWERS, *map(str, files), str(judge)],
        input=json.dumps({"cases": cases}), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers: list[Any] = json.loads(done.stdout)
    return answers


def in_python(primitive: Primitive, sides: list[int]) -> dict[str, Any]:
    """The same of the library: the first fault of each property on one mesh, and all moves."""
    try:
        sequence = Sequence.of(primitive, *sides)
        movement = Movement(sequence)
        faults = [next(search(movement), None) for search in FAULTS.values()]
        phases = [movement.moved(phase) for phase in PHASES]
    except PrimitiveError as error:
        return {"error": str(error).replace(f"{type(primitive).__name__}.", "")}
    moves: list[Any] = []
    for phase in phases:
        each_step = [
            [list(map(_hop, some)) for some in steps] for steps in (phase.operands, phase.partials)
        ]
        returns = [[_finished(one) for one in some] for some in phase.returns]
        moves.append([list(map(_hop, phase.prologue)), *each_step, returns])
    sentences = [fault and map_sentence(sequence.mesh, fault) for fault in faults]
    return {"faults": sentences, "phases": moves}


def _hop(one: Hop) -> list[Any]:
    return [block_name(one.tensor, one.index), one.source, one.target]


def _finished(one: Return) -> list[Any]:
    parts = [[home, list(taken)] for home, taken in one.parts]
    return [block_name(one.tensor, one.index), parts]


def random_text(draw: random.Random, names: list[str]) -> str:
    """An index of one or two digits: mostly affine and wrapped, as those of the library are."""

    def form() -> str:
        terms = [
            f"{draw.choice(('', '', '', '2 * '))}{name}" for name in names if draw.random() < 0.5
        ]
        text = " + ".join(terms) or "0"
        for sign in ("-", "+"):
            text += f" {sign} 1" * (draw.random() < 0.2)
        if draw.random() < 0.15:
            a, b = draw.choice(names), draw.choice(("s - 1", "0", "1"))
            condition = f"{a} {draw.choice(('==', '<', '>='))} {b}"
            text += f" + where({'~' * draw.randint(0, 1)}({condition}), 1, 0)"
        by = draw.choice(("% s", "% s", "% s", "% 2", "// s"))
        return f"({text}) {by}"

    kind = draw.random()
    if kind < 0.4:
        return draw.choice(names)
    if kind < 0.93:
        return form()
    return draw.choice(
        (
            f"({form()}, {draw.choice(names)})",
            f"(*, {form()})",
            f"{form()} - {names[0]}",
            f"{names[0]} % (s - 1)",
        )
    )


def random_source(draw: random.Random) -> dict[str, Any]:
    """A right map of the library with some indices drawn anew, or one that is drawn alone."""
    drawn = draw.choice([*(one for one in LIBRARY if {*one["axes"].values()} <= {"s", "b"}), None])
    if drawn is None:
        names = ["r", "c", "t"]
        phases = {phase: {dim: random_text(draw, names) for dim in "MNK" if draw.random() < 0.8}
                  for phase in PHASES}  # fmt: skip
        steps = draw.choice(("s", "s", "1", "2"))
        return {"axes": {"r": "s", "c": "s"}, "steps": steps, "homes": {}, "phases": phases,
                "keeps": [], "virtual": []}  # fmt: skip
    source = {**drawn, "phases": {phase: dict(drawn["phases"][phase]) for phase in PHASES},
              "homes": {tensor: dict(home) for tensor, home in drawn["homes"].items()}}  # fmt: skip
    for _ in range(draw.choice((0, 1, 1, 2))):
        part = source[draw.choice(("phases", "phases", "homes"))] or source["phases"]
        key = draw.choice(list(part))
        if part[key]:
            names = [*source["axes"], *["t"] * (key in PHASES)]
            part[key][draw.choice(list(part[key]))] = random_text(draw, names)
    return source


def texts(source: dict[str, Any]) -> dict[str, Any]:
    """A source as the page has it: one line for each phase and home."""
    return {**source, "phases": _lines(source["phases"]), "homes": _lines(source["homes"])}


def _lines(part: dict[str, dict[str, str]]) -> dict[str, str]:
    return {
        key: ", ".join(f"{dim}={text}" for dim, text in slices.items())
        for key, slices in part.items()
    }


def primitive_of(source: dict[str, Any]) -> Primitive:
    """The primitive that a source is the text of."""
    sides = list(dict.fromkeys(source["axes"].values()))

    def slices(part: dict[str, str], names: list[str], values: tuple[Any, ...]) -> dict[str, Any]:
        from primepar.schedule.primitive import ANY

        known = dict(zip(names, values, strict=True))
        index: dict[str, Any] = {}
        for dim, text in part.items():
            digits = [
                ANY if digit == "*" else evaluate(parse(digit), known) for digit in digits_of(text)
            ]
            index[dim] = tuple(digits)
        return index

    names = [*source["axes"], "t", *sides]
    members: dict[str, Any] = {
        phase: lambda self, *values, part=part: slices(part, names, values)
        for phase, part in source["phases"].items()
    }
    members["steps"] = lambda self, *values: evaluate(
        parse(source["steps"]), dict(zip(sides, values, strict=True))
    )
    if source["homes"]:
        around = [*source["axes"], *sides]
        members["home"] = lambda self, tensor, *values: slices(
            source["homes"][tensor], around, values
        )
    made = type(
        "Random", (Primitive,), {**members, "axes": source["axes"], "keeps": tuple(source["keeps"]),
                                 "virtual": tuple(source["virtual"])}
    )  # fmt: skip
    primitive: Primitive = made()
    return primitive


def digits_of(text: str) -> list[str]:
    """The digits of an index as text: split at the commas of an outer parenthesis."""
    depth, parts, closed = 0, [""], 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        closed = closed or place * (depth == 0 and letter == ")")
        if letter == "," and depth == 1:
            parts.append("")
        else:
            parts[-1] += letter
    if len(parts) == 1 or closed != len(text) - 1 or not text.startswith("("):
        return [text]
    return [part.strip() for part in [parts[0][1:], *parts[1:-1], parts[-1][:-1]]]


def library_sources() -> list[dict[str, Any]]:
    """Every map of the library as its text, one text for each dim."""
    sources = []
    for name, primitive in PRIMITIVES.items():
        data = map_data(name, primitive(), runs=False)
        sources.append({
            "axes": data["axes"], "steps": data["steps"], "keeps": data["keeps"],
            "virtual": data["virtual"],
            "phases": {phase: _joined(slices) for phase, slices in data["phases"].items()},
            "homes": {tensor: _joined(slices) for tensor, slices in data["homes"].items()},
        })  # fmt: skip
    return sources


def _joined(slices: dict[str, list[str]]) -> dict[str, str]:
    return {
        dim: digits[0] if len(digits) == 1 else f"({', '.join(digits)})"
        for dim, digits in slices.items()
    }


LIBRARY = library_sources()


def test_moves_and_sentences_are_those_of_the_library_on_random_maps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "COMPARED", 0)  # these maps are expressions from the beginning
    draw = random.Random(34)
    sources = [random_source(draw) for _ in range(MAPS)]
    sides = [[draw.choice((1, 2, 2, 2, 3)), *[2] * len(source["virtual"])] for source in sources]
    page = in_node(
        [(texts(source), mesh) for source, mesh in zip(sources, sides, strict=True)], tmp_path
    )
    kinds = Counter[str]()
    for source, mesh, answer in zip(sources, sides, page, strict=True):
        expected = in_python(primitive_of(source), mesh)
        assert answer == expected, (source, mesh)
        wrong = [name for name, one in zip(FAULTS, expected.get("faults", ()), strict=False) if one]
        kinds.update(wrong or ["error" if "error" in expected else "right"])
    assert all(kinds[kind] > 2 for kind in (*FAULTS, "error", "right")), kinds


def test_moves_of_every_map_of_the_library_are_those_of_the_library(tmp_path: Path) -> None:
    cases = [
        (source, [length] * len({*source["axes"].values()}))
        for source in LIBRARY
        for length in ((1, 2, 3) if len(source["axes"]) < 3 else (1, 2))
    ]
    page = in_node([(texts(source), mesh) for source, mesh in cases], tmp_path)
    primitives = [primitive() for primitive in PRIMITIVES.values()]
    for (source, mesh), answer in zip(cases, page, strict=True):
        assert answer == in_python(primitives[LIBRARY.index(source)], mesh), (source, mesh)
        assert not any(answer["faults"])


def test_the_first_fault_of_a_wrong_map_is_the_sentence_of_verify(tmp_path: Path) -> None:
    """Of each property on its smallest mesh, over all meshes up to side 6."""
    wrong = []
    for name, phase, dim, text in (
        ("primepar", "forward", "N", "(r + c) % s"), ("primepar", "gradient", "K", "c"),
        ("summa", "forward", "N", "r"), ("three-d", "backward", "M", "(j + l) % s"),
        ("by-input", "forward", "N", "where(s > 4, 0, d)"),
        ("output-stays-both-ways", "forward", "N", "((r + c + where(h > 2, 0, t)) % s, h)"),
    ):  # fmt: skip
        source = LIBRARY[[*PRIMITIVES].index(name)]
        phases = {**source["phases"], phase: {**source["phases"][phase], dim: text}}
        wrong.append({**source, "phases": phases})
    wrong[2]["homes"] = {**wrong[2]["homes"], "W": {"N": "r", "K": "r"}}
    page = in_node([(texts(source), None) for source in wrong], tmp_path)
    for source, answer in zip(wrong, page, strict=True):
        wrong_meshes = smallest_faults(meshes_of(primitive_of(source), ()), FAULTS)
        expected = [
            [name, map_sentence(one.sequence.mesh, one.fault)] for name, one in wrong_meshes
        ]
        assert answer["faults"] == expected
        assert expected


def test_the_judge_of_waits_agrees_with_the_library(tmp_path: Path) -> None:
    """On random orders of the lines of every puzzle, and on its answer, which ends."""
    draw = random.Random(34)
    puzzles = [puzzle for puzzle in PUZZLES if not {"boards", "map"} & puzzle.keys()]
    programs: dict[str, Any] = {name: case.wrong for name, case in CASES.items()}
    programs |= {one.path.stem: one.schedule for one in exercises()}
    cases: list[Any] = []
    for puzzle in puzzles:
        lists = [list(range(len(lines))) for lines in puzzle["ranks"]]
        drawn = [[draw.sample(order, len(order)) for order in lists] for _ in range(30)]
        cases += [(puzzle, orders) for orders in (puzzle["answer"], lists, *drawn)]
    judged = in_node(cases, tmp_path, WAITS, FOLDER / "waits.js")
    kinds = Counter(kind for kind, _ in judged)
    assert all(kinds[kind] > 20 for kind in ("order", "cycle", "ends")), kinds
    for (puzzle, orders), (kind, ranks) in zip(cases, judged, strict=True):
        assert kind == "ends" or orders != puzzle["answer"]
        program = programs[puzzle["name"]]
        pairs = zip(program.programs, orders, strict=True)
        now = tuple(tuple(nodes[place] for place in order) for nodes, order in pairs)
        matches = Matches(replace(program, programs=now))
        if kind != "order":
            assert matches.faults == []
            cycle = cycle_of(WaitGraph(matches))
            assert len(ranks) == (0 if cycle is None else len(cycle.waits))


def test_every_puzzle_that_the_library_judged_has_its_answer_among_what_is_right() -> None:
    """What is shown first is wrong, with the lines where it is; a map has its repaired lines."""
    assert all(puzzle["hint"] for puzzle in PUZZLES)
    (walk,) = (puzzle for puzzle in PUZZLES if "map" in puzzle)
    assert walk["repaired"].startswith("gradient: M=(r + t) % s, N=(r + c - 1 + where(t == s - 1")
    judged = [puzzle for puzzle in PUZZLES if "boards" in puzzle]
    assert (len(judged), len(PUZZLES)) == (34, 42)
    for puzzle in judged:
        right = [board["orders"] for board in puzzle["boards"] if board["kind"] == "ends"]
        assert puzzle["answer"] in right, puzzle["name"]
        first = puzzle["boards"][0]
        assert first["kind"] == "refuted"
        assert all(place < len(first["orders"][rank]) for rank, place in first["places"])


def test_the_scripts_are_typed(tmp_path: Path) -> None:
    """By JSDoc, where TypeScript is to be had: TSC=tsc.js of the npm package typescript."""
    compiler = os.environ.get("TSC") or shutil.which("tsc")
    if compiler is None:
        pytest.skip("no TypeScript: npm install -g typescript, or set TSC")
    assert NODE is not None
    command = [NODE, str(Path(compiler).resolve()), "--allowJs", "--checkJs", "--noEmit"]
    command += ["--strict", "false", "--noImplicitAny", "--skipLibCheck", "--target", "es2023"]
    command += ["--lib", "es2023,dom,dom.iterable", *(str(FOLDER / name) for name in SCRIPTS)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_scripts_are_few_lines() -> None:
    assert sum(len(path.read_text().splitlines()) for path in FOLDER.glob("*.js")) <= 2_500


def test_the_file_that_the_page_proves_is_the_map(tmp_path: Path) -> None:
    """Every map of the library, as the page writes it in Python, has the same expressions."""
    cases = [(texts(source), None) for source in LIBRARY]
    written = in_node(cases, tmp_path, PYTHON_OF, FOLDER / "prover.js")
    for name, text in zip(PRIMITIVES, written, strict=True):
        known: dict[str, Any] = {}
        exec(text, known)
        pair = known["Mine"](), PRIMITIVES[name]()
        mine, theirs = (map_data("", primitive, runs=False) for primitive in pair)
        for part in ("axes", "steps", "phases", "homes", "keeps", "virtual"):
            assert mine[part] == theirs[part], (name, part)


def test_proofs_on_lists_are_those_on_numpy() -> None:
    """In a process where the page's stand-in is NumPy: the same verdicts, certified."""
    command = [sys.executable, "-c", ON_LISTS, str(FOLDER / "numpy_of_lists.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = []
    for name in ("primepar", "three-d", "sequence-row"):
        # Without formulas, which are compared by counts that the page does not ask for.
        members = {"sent": Primitive.sent, "held": Primitive.held}
        report = verify_primitive(type("Bare", (PRIMITIVES[name],), members)())
        expected.append([[one.name, one.verdict, one.certified] for one in report.properties])
    assert json.loads(done.stdout) == expected
