"""Tutorials and the solutions of their exercises run; unsolved and wrong ones are refused."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from command import run as command
from script_module import load
from warm import python

from primepar.commands.exercise_catalog import exercise_number

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = sorted((ROOT / "tutorials").glob("[0-9]*.py"))[1:]  # 00 is the demo
EXERCISES = sorted((ROOT / "tutorials" / "exercises").glob("[0-9]*.py"))
USER_CODE = re.compile(r"^# USER CODE BEGIN\n.*?^# USER CODE END\n", re.MULTILINE | re.DOTALL)
SOLUTIONS = ROOT / "tutorials" / "exercises" / "solutions"


def rows_go_round(forward: str, home: str) -> str:
    """User code of the seventh exercise: its map, and the home of O."""
    return (
        "class RowRing(Primitive):\n    axes = ('r',)\n    def forward(self, r, t, s):\n"
        f"        return dict({forward})\n    def home(self, tensor, r, s):\n"
        f"        return dict(I=dict(M=r), W=dict(K=r), O=dict({home}))[tensor]\n"
    )


def one_in_turn(ahead: str, backward: str = "k") -> str:
    """User code of the tenth exercise: some forwards, then one and one backward in turn."""
    return (
        "def order(stage, stages, micro_batches):\n"
        f"    ahead = min({ahead}, micro_batches)\n"
        "    actions = [('F', k) for k in range(ahead)]\n    for k in range(micro_batches):\n"
        "        actions += [('F', ahead + k)] if ahead + k < micro_batches else []\n"
        f"        actions += [('B', {backward})]\n    return actions\n"
    )


WRONG = [
    ("01", "class Cube(Primitive):\n    axes = ('i', 'j', 'l')\n    def steps(self, s):\n"
           "        return 1\n    def forward(self, i, j, l, t, s):\n"
           "        return dict(M=i, N=j, K=j)\n",
     "8 devices do only 4 different sub-operators"),
    ("02", "fc1, fc2 = 'K4', 'K4'\n",
     "12 blocks have to be moved between the operators in forward"),
    ("02", "fc1, fc2 = 'N4', 'K4'\n",
     "a device does not hold a quarter of the hidden activations"),
    ("02", "fc1, fc2 = 'K2', 'N2'\n", "fc1 is for 2 devices, not four"),
    ("03", "from primepar.partition import PrimePar as Mirror\n",
     "with side 3 device 0 walks along N in the order [0, 1, 2]"),
    ("04", "def order(rank, n, send, receive):\n    return [receive, receive]\n",
     "device 0 of 2 has to make each of the two calls once"),
    ("04", "def order(rank, n, send, receive):\n"
           "    return [receive, send] if rank == 0 else [send, receive]\n",
     "4 devices need 4 units of time"),
    ("05", "def stays(M, N, K):\n    return 'O'\n",
     "M=12 N=12 K=48 with side 2: keeping O sends 540 elements, keeping W only 396"),
    ("05", "def stays(M, N, K):\n    return 'N'\n", "expected 'O', 'I' or 'W', got 'N'"),
    ("06", "def sequence(kind, name):\n    return 'M2'\n",
     '$.sequences["embedding"]: expected a sequence for the 8 devices of $.ranks, got 2 in '
     "'M2': their lengths multiply to the number of devices"),
    ("06", "def sequence(kind, name):\n    return 'M2,M4'\n",
     'embedding has its rows cut in 8, not in two'),
    ("06", "def sequence(kind, name):\n    return 'M2,K4' if kind == 'linear' else 'M2,R4'\n",
     "the table of tokens is not cut in four"),
    ("06", "def sequence(kind, name):\n"
           "    return 'M2,N4' if kind == 'embedding' else 'M2,K4'\n",
     "768 elements move between embedding and blocks.0.norm1"),
    ("07", rows_go_round("M=(r + 2 * t) % s, K=r", "K=r"),
     "coverage: s=2 (2 devices): forward sub-operator (M=0, N=0, K=0): expected one device to "
     "compute it once, got device 0 (r=0) at t=0 and device 0 (r=0) at t=1: give one of them "
     "another"),
    ("07", rows_go_round("M=(r + t) % s, K=(r + 1) % s", "K=r"),
     "with side 2 device 0 makes other columns than its own"),
    ("07", rows_go_round("M=(r + t) % s, K=r", "M=r"),
     "with side 2 the home of O on device 1 is [(1, 0), (1, 1)]"),
    ("07", rows_go_round("M=r, K=(r + t) % s", "M=r"),
     "with side 2 device 0 makes other columns than its own"),
    ("07", rows_go_round("M=(r + t) % s, K=r", "K=r")
     + "    def backward(self, r, t, s):\n        return dict(M=r, K=(r + t) % s)\n",
     "with side 2 each device sends 252 elements"),
    ("08", "def fuse(messages):\n    return [Group(tuple(messages))]\n",
     "2 stages, 1 micro-batches, stage 1: a group holds other than a send and a receive of a "
     "neighbour"),
    ("08", "def fuse(messages):\n    return list(messages)[:-1]\n",
     "2 stages, 1 micro-batches, stage 0: expected each message once and in order"),
    ("08", "def fuse(messages):\n    return list(messages)\n",
     "2 stages, 2 micro-batches, deadlock-freedom: ranks 0 and 1 wait for one another in a cycle: "
     "start both directions of an exchange together, in a group or by isend and irecv before the "
     "waits"),
    ("09", "def hidden(events):\n    moving = sum(each.end - each.start for each in events\n"
           "                 if each.track == 'communication' and each.op != 'wait')\n"
           "    return moving, moving\n",
     "P2x2: for 128 seconds something moves, got 448"),
    ("09", "def hidden(events):\n"
           "    moves = [each for each in events if each.op not in ('wait', 'compute')]\n"
           "    times = sorted({time for each in moves for time in (each.start, each.end)})\n"
           "    moving = sum(b - a for a, b in zip(times, times[1:])\n"
           "                 if any(each.start <= a < each.end for each in moves))\n"
           "    return moving, moving\n",
     "P2x2, without overlap: for 0 seconds it also multiplies, got 128"),
    ("10", one_in_turn("0"),
     "2 stages, 3 micro-batches: a stage waits for 9 units, in GPipe 3"),
    ("10", one_in_turn("stages - stage"),
     "2 stages, 3 micro-batches: stage 0 keeps 3, expected 2"),
    ("10", one_in_turn("stages - 1 - stage", "micro_batches - 1 - k if stage else k"),
     "2 stages, 3 micro-batches: stage 0 waits before B0, in a cycle of stages that wait for one "
     "another"),
    ("10", one_in_turn("stages - 1 - stage", "0"),
     "2 stages, 3 micro-batches, stage 0: expected F and B of each micro-batch once"),
    ("10", "def order(stage, stages, micro_batches):\n"
           "    return [(kind, k) for k in range(micro_batches) for kind in 'BF']\n",
     "2 stages, 1 micro-batches, placement: rank 1, instruction 0 (layer1.backward dx.1[0,0] += "
     "dx.2[0,0] * w.1[0,0]): expected dx.2[0,0] in this rank's memory, got none there: receive or "
     "compute it before, or list it in initial"),
    ("11", "def evict(here, later):\n    return here[-1]\n",
     "a a a a b c b, room for 2: 4 fetches, 3 are enough"),
    ("11", "def evict(here, later):\n    return min(here, key=later.count)\n",
     "a a b c a b c, room for 2: 5 fetches, 4 are enough"),
    ("11", "def evict(here, later):\n    return later[0]\n",
     "a a a a a b c: expected one of a b, got 'c'"),
    ("12", "forward, backward, gradient = 'K', 'N', 'N'\nhomes = dict(I='N', W='N', O='K')\n",
     "each device sends 1404 elements, 1242 are enough"),
    ("12", "forward, backward, gradient = 'K', 'M', 'K'\nhomes = dict(I='M', W='N', O='K')\n",
     "each device sends 1458 elements, 1242 are enough"),
    ("12", "forward, backward, gradient = 'K', 'M', 'K'\nhomes = dict(I='K', W='N', O='K')\n",
     "home of I: expected M or N, got 'K'"),
    ("13", "def smallest(rate, bandwidth, side):\n    return 4 * side * rate // bandwidth\n",
     "1e+09 operations and 3e+08 bytes a second on 2 by 2 devices: expected 28, got 26"),
    ("14", "factors = {'s + d >= 1': {-1: 1, 2: -1, 0: 2}}\n",
     "s + d >= 1: a factor is negative, which turns 0 or more around: {-1: 1, 2: -1, 0: 2}"),
    ("14", "factors = {'s + d >= 1': {-1: 1, 0: 1}}\n",
     "s + d >= 1: expected a negative constant, got -1 + 0 s + -1 d"),
]  # fmt: skip


def the(kind: list[Path], number: str) -> Path:
    """Return the one file of a kind that starts with a number."""
    (path,) = (path for path in kind if path.name.startswith(number))
    return path


def solved(exercise: Path, user_code: str, folder: Path) -> Path:
    """Write a copy of an exercise with other user code; return its path."""
    source = exercise.read_text(encoding="utf-8")
    assert len(USER_CODE.findall(source)) == 1
    copy = folder / exercise.name
    copy.write_text(USER_CODE.sub(lambda _: user_code, source), encoding="utf-8")
    return copy


def run(script: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Run a script by itself in a folder of its own, as from a shell."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # exercises set one of their own
    runpy.run_path(str(script), run_name="__main__")


def test_every_tutorial_has_an_exercise_and_every_exercise_a_solution() -> None:
    numbers = [path.name[:2] for path in TUTORIALS]
    assert numbers == [f"{number:02}" for number in range(1, 15)]
    assert [path.name[:2] for path in EXERCISES] == numbers
    names = [path.name for path in EXERCISES]
    assert [path.name for path in sorted(SOLUTIONS.glob("*.py"))] == names


@pytest.mark.parametrize("script", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_ends_with_the_commands_of_its_exercises(script: Path) -> None:
    last = script.read_text(encoding="utf-8").rpartition("# %% [markdown]\n")[2]
    shell = re.search(r"^# ```sh\n(.*?)^# ```$", last, re.MULTILINE | re.DOTALL)
    assert shell is not None
    tutorials, *broken = shell[1].replace("# ", "").splitlines()
    assert tutorials == f"python {the(EXERCISES, script.name[:2]).relative_to(ROOT)}"
    assert broken
    for line in broken:
        assert exercise_number(int(line.removeprefix("primepar exercise "))).symptom


def test_broken_schedules_are_numbered_as_the_tutorials_meet_them() -> None:
    """Each once; the other exercises that are named are functions to fill in."""
    named = re.findall(
        r"^# primepar exercise (\d+)$", "".join(map(Path.read_text, TUTORIALS)), re.M
    )
    assert [int(number) for number in named if int(number) < 13] == list(range(1, 13))
    assert len(set(named)) == len(named)


@pytest.mark.parametrize(
    ("number", "user_code", "why"),
    [
        ("01", "class Cube(Primitive):\n    axes = ('i', 'j', 'l')\n    def forward(self, *a):\n"
               "        return 1 / 0\n",
         ":23: Cube.forward: expected a map that can be called as "
         "forward(self, i, j, l, t, s), got ZeroDivisionError: division by zero\n"),
        ("02", "fc1 = K4\n", "not yet: line 25: NameError: name 'K4' is not defined\n"),
        ("02", "fc1, fc2 = 'K4', 'Z9'\n", "not yet: sequence 'Z9': expected primitives like"),
    ],
)  # fmt: skip
def test_an_answer_that_raises_ends_without_a_traceback(
    number: str, user_code: str, why: str, tmp_path: Path
) -> None:
    script = solved(the(EXERCISES, number), f"# USER CODE BEGIN\n{user_code}", tmp_path)
    done = python(script, folder=tmp_path)
    assert (done.code, done.out) == (1, "")
    assert why in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("script", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs_alone_and_draws(
    script: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The run that made its page is taken, if these are the sources of it: `make test` has one."""
    renderer = load(ROOT / "docs" / "render_tutorials.py")
    if renderer.is_made():
        page = (renderer.PAGES / f"{script.stem}.md").read_text(encoding="utf-8")
        drawn = [renderer.PAGES / name for name in re.findall(r"\]\((\S+\.svg)\)", page)]
    else:
        run(script, monkeypatch, tmp_path)
        drawn = sorted((tmp_path / "out" / "tutorials").glob("*.svg"))
    assert drawn
    for picture in drawn:
        assert picture.name.startswith(script.name[:3])
        ElementTree.parse(picture)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda path: path.stem)
def test_a_solution_is_accepted(
    exercise: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = USER_CODE.search((SOLUTIONS / exercise.name).read_text(encoding="utf-8"))
    assert answer is not None
    run(solved(exercise, answer[0], tmp_path), monkeypatch, tmp_path)
    assert capsys.readouterr().out.startswith("Right")


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda path: path.stem)
def test_an_exercise_as_it_stands_is_refused(
    exercise: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(exercise, monkeypatch, tmp_path)
    assert str(caught.value).startswith("not yet: ")


@pytest.mark.parametrize(("number", "user_code", "why"), WRONG)
def test_a_wrong_answer_is_refused_with_the_reason(
    number: str, user_code: str, why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    exercise = solved(the(EXERCISES, number), user_code, tmp_path)
    with pytest.raises(SystemExit) as caught:
        run(exercise, monkeypatch, tmp_path)
    assert str(caught.value) == f"not yet: {why}"


def test_the_picture_in_the_readme_is_what_the_code_draws(tmp_path: Path) -> None:
    drawn = tmp_path / "p2x2.svg"
    assert command("show", "primepar", "--side", "2", "-o", str(drawn)).code == 0
    kept = ROOT / "docs" / "images" / "p2x2.svg"
    advice = "draw it anew: primepar show primepar --side 2 -o docs/images/p2x2.svg"
    assert drawn.read_text() == kept.read_text(), advice


def test_the_renderer_shows_prose_code_output_and_pictures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "01_small.py"
    script.write_text(
        "# %% [markdown]\n# # Title\n#\n# Prose.\n\n# %% Set-up\nx = 1\n\n# %%\nprint(x + 1)\n"
        "open('01_a_picture.svg', 'w').write('<svg/>')\n"
    )
    renderer = load(ROOT / "docs" / "render_tutorials.py")
    pages = tmp_path / "pages"
    pages.mkdir()
    monkeypatch.setattr(renderer, "PAGES", pages)
    monkeypatch.chdir(tmp_path)
    page = renderer.render(script, tmp_path)
    assert page == (
        "---\ndescription: >-\n  Title: Prose.\n---\n\n"
        '# Title\n\nProse.\n\n??? quote "Set-up"\n\n    ```python\n    x = 1\n    ```\n\n'
        "```python\nprint(x + 1)\nopen('01_a_picture.svg', 'w').write('<svg/>')\n```\n\n"
        "![a picture](01_a_picture.svg){ .schedule }\n\n"
        "```{.text .output}\n2\n```\n"
    )
    assert (pages / "01_a_picture.svg").read_text() == "<svg/>"


def test_a_question_is_folded_with_the_code_that_checks_its_answer(tmp_path: Path) -> None:
    script = tmp_path / "01_small.py"
    cell = "# %% [question]\n# How\n# many?\n#\n# Hint: Few.\n#\n# Answer: Two.\nassert x == 2\n"
    renderer = load(ROOT / "docs" / "render_tutorials.py")
    script.write_text(f"# %% [markdown]\n# # Title\n#\n# Prose.\n\n# %%\nx = 2\n\n{cell}")
    assert renderer.render(script, tmp_path).endswith(
        "**Question.** How\nmany?\n\n<details markdown>\n<summary>Hint</summary>\n\nFew.\n\n"
        "</details>\n\n<details markdown>\n<summary>Answer</summary>\n\nTwo.\n\n```python\n"
        "assert x == 2\n```\n\n</details>\n"
    )
    script.write_text(f"# %% [markdown]\n# # Title\n\n# %%\nx = 3\n\n{cell}")
    with pytest.raises(AssertionError):
        renderer.render(script, tmp_path)


@pytest.mark.parametrize("script", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_asks_three_questions_whose_answers_are_checked(script: Path) -> None:
    asked = re.findall(r"# %% \[question\]\n(.*?)(?=# %%)", script.read_text(), re.DOTALL)
    assert len(asked) >= 3
    for cell in asked:
        assert re.search(r"\n#\n# Hint: .*\n#\n# Answer: .*^assert ", cell, re.M | re.S)


def test_a_cell_that_fails_fails_the_rendering_at_its_line(tmp_path: Path) -> None:
    script = tmp_path / "01_small.py"
    script.write_text("# %% [markdown]\n# Prose.\n\n# %%\n1 / 0\n")
    renderer = load(ROOT / "docs" / "render_tutorials.py")
    with pytest.raises(ZeroDivisionError) as caught:
        renderer.render(script, tmp_path)
    assert caught.traceback[-1].lineno + 1 == 5
