"""What newcomers mistype: each call ends in one line that names the cause and what to write.

A case is a command line, the text of `mine.py` or of the file that it names, and the whole message.
The exit code is 2, but 0 for help, and 1 where a map is a map and is refuted.
"""

from __future__ import annotations

import shlex
import shutil
import textwrap
from pathlib import Path

import pytest
from command import run

from primepar.models.config_json import load_config
from primepar.plan import preset_plan, save_plan

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"

HEAD = "from primepar import Primitive, where\n\n\nclass Mine(Primitive):\n"
LANGUAGE = "expected +, -, *, //, %, comparisons, &, |, ~ and where"
IF = (
    "got `if`, `and`, `or`, `not`, min or max of a device, step or side: write where(condition, a, "
    "b) and join conditions with &, | and ~"
)
ROUNDED = (
    "got a device, step or side that is rounded or made a number of Python's: write a // b for a "
    "quotient of whole numbers"
)
PRIMITIVES = (
    "B, M, N, K, Ks, Ns, S2x2, S2x3, Sd2x2x2, Sk2x2x2, T2x2x2, C2x2x2, D2x2x2, Cr2x2x2, "
    "G2x2x2, Gi2x2x2, Gw2x2x2, Gr2x2x2, P2x2, Os2x2, Is2x2, Ws2x2, "
    "Ob2x2x2, Ib2x2x2, Wb2x2x2"
)
COMMANDS = "list, show, check, verify, search, exercise, preflight, plan, profile, simulate, train"
PRESETS = (
    "megatron, megatron-sp, summa, tesseract, 3d, primepar, stationary, stationary-both-ways, data"
)
CLUSTERS = "a100, b200, cpu-gloo-4, gb200, h100, h200, mi300x, torus-4x4, tpu-v5p, v100, v100-8x4"
TARGET = (
    "a name that `primepar list` prints, file.py:Class, program.json, a sequence like K,P2x2, "
    "plan.json, or a preset plan with --model"
)


def mine(*body: str, axes: str = 'axes = ("r",)', head: str = HEAD) -> str:
    """A file with one primitive of these lines; `forward` is the first where none is."""
    return head + textwrap.indent("\n".join((axes, *body)) + "\n", "    ")


def forward(value: str, arguments: str = "self, r, t, s") -> str:
    """A forward map that returns this."""
    return f"def forward({arguments}): return {value}"


def index(value: str) -> str:
    """A file whose forward map has this slice index of N."""
    return mine(forward(f"dict(M=r, N={value})"))


RIGHT = index("(r + t) % s")

# Names and files

CALLS = {
    "-x": "-x: expected an option of primepar, got no such one: write --help",
    "vrify": f"expected one of {COMMANDS}, got 'vrify': write primepar verify",
    "prove primepar": f"expected one of {COMMANDS}, got 'prove': write primepar verify",
    "PrimePar": f"expected one of {COMMANDS}, got 'PrimePar': primepar --help describes them",
    "verify": f"TARGET: expected a value, got none: write primepar verify TARGET ({TARGET})",
    "verify primepar --side": "--side: expected a value, got none: write --side VALUE",
    "check primepar": "primepar: expected the length of side s, 1 or more, got none: write --side "
    "2",
    "check primepar --side 0": "--side: expected the length of side s, 1 or more, got '0': write "
    "--side 2",
    "check primepar --side two": "--side: expected the length of side s, 1 or more, got 'two': "
    "write --side 2",
    "check primepar --side 2x2": "--side: expected the length of side s, 1 or more, got '2x2': "
    "write --side 2",
    "check primepar --sides 2": "--sides: expected an option of primepar check, got no such one: "
    "write --side",
    "check primepar -s 2": "-s: expected an option of primepar check, got no such one: write "
    "--side",
    "check primepar 2": "expected no more arguments of primepar check, got 2: write --side 2",
    "verify primepar --buffer": "--buffer: expected an option of primepar verify, got no such one: "
    "write --buffered",
    "verify primepar --quiet": "--quiet: expected an option of primepar verify, got no such one: "
    "primepar verify --help lists them",
    "verify primepar --timeout 1m": "--timeout: expected a number, got '1m': see primepar verify "
    "--help",
    "check primepar --side 2 --shape 7,8,8": "dim M: expected a positive multiple of its 2 slices, "
    "got 7: pad M with zeros to 8",
    "check primepar --side 2 --shape 8x8x8": "--shape: expected M,N,K or B,M,N,K, got '8x8x8': "
    "write it like --shape 8,8,8",
    "check PrimePar --side 2": "expected the name of a primitive, got 'PrimePar': write primepar",
    "check primpar --side 2": "expected the name of a primitive, got 'primpar': write primepar",
    "verify sumaa": "expected the name of a primitive, got 'sumaa': write summa",
    "verify nothing": "expected the name of a primitive, file.py:Class, program.json, or a "
    "sequence like K,P2x2, got 'nothing': primepar list prints the names",
    "check P2x3": "sequence 'P2x3': expected 2 lengths after P, equal along r and c, like P2x2, "
    "got 'P2x3'",
    "check P3": "sequence 'P3': expected 2 lengths after P, equal along r and c, like P2x2, got "
    "'P3': write P3x3",
    "check p2x2": f"sequence 'p2x2': expected primitives like {PRIMITIVES}, got 'p2x2': write P2x2",
    "check P2X2": f"sequence 'P2X2': expected primitives like {PRIMITIVES}, got 'P2X2': write P2x2",
    "check 'K2;P2x2'": f"sequence 'K2;P2x2': expected primitives like {PRIMITIVES}, got 'K2;P2x2': "
    "write K2,P2x2",
    "check K2 P2x2": "expected no more arguments of primepar check, got P2x2: write K2,P2x2",
    "check K,P": "sequence 'K,P': expected 2 lengths after P, equal along r and c, like P2x2, got "
    "'P'",
    "verify .": ".: expected a file, got a directory: write file.py:Class, or the name of a file "
    "in it that ends with .json",
    "verify nosuch.json": "nosuch.json: expected a program file, got no such file or directory",
    "verify nosuch.py:Mine": "nosuch.py: expected a Python file, found none: check the path",
    "verify megatron": "megatron: expected a model and a number of devices for a preset plan, got "
    "neither: write megatron --model config.json --devices 4, to show it or to verify it",
    "show megatron --model none.json --devices 4": "none.json: expected a config.json, got no such "
    "file or directory",
    "show megatron --devices 4": "megatron: expected the model and the devices of a preset, "
    "got no --model: write --model opt-6.7b",
    "show megatron --model config.json": "megatron: expected the model and the devices of a "
    "preset, got no --devices: write --devices 8",
    "show megatron --model config.json --ranks 4": "--ranks: expected an option of primepar show, "
    "got no such one: write --devices",
    "show megatron --model config.json --devices four": "--devices: expected an integer, got "
    "'four': see primepar show --help",
    "show megtron --model config.json --devices 4": f"expected a preset plan ({PRESETS}), or M<d>, "
    "before one as in M2,megatron, got 'megtron': write megatron",
    "show tesseract --model config.json --devices 8 --depth 2": "--depth: expected an option of "
    "primepar show, got no such one: write the depth into the name, like tesseract:2",
    "show summa --model config.json --devices 8": "summa: expected q x q devices, got 8: take 4 or "
    "9, or write M2,summa",
    "plan opt-6.7 --cluster h200-8 --devices 4": "expected a config.json or the name of a "
    "published model, got opt-6.7: write opt-6.7b, opt-175b or gpt-3",
    "plan opt-6.7b --cluster h20 --devices 4": f"h20: expected a cluster file or one of "
    f"{CLUSTERS}, got no such file or directory: write h200",
    "plan opt-6.7b --cluster none.toml --devices 4": "none.toml: expected a cluster file or one of "
    f"{CLUSTERS}, got no such file or directory",
    "plan opt-6.7b --cluster h200-8 --devices 9": "--devices: expected 1 to 8, the devices of the "
    "cluster 8 x H200, NVLink, got 9: take 8",
    "redundancy opt-6.7b": f"expected one of {COMMANDS}, got 'redundancy': write primepar plan "
    "MODEL --objective redundancy",
    "plan --profile -o here.toml": "--profile: expected an option of primepar plan, got no such "
    "one: write primepar profile -o cluster.toml",
    "simulate P2x2 --cluster h200-8": "P2x2: expected the operator's shape, of which its time is, "
    "got none: write --shape 4096,4096,4096",
    "train --plan nosuch": "--plan nosuch: expected a plan file (.json), or a sequence like "
    f"K,P2x2, got neither: sequence 'nosuch': expected primitives like {PRIMITIVES}, got 'nosuch'",
    "train --plan nosuch.json": "nosuch.json: expected a plan file, got no such file or directory",
    "train --plan megatron": "--plan megatron: expected a plan file or a sequence like K,P2x2, got "
    "the name of a preset: write its plan with primepar show megatron --model config.json "
    "--devices 1 -o plan.json",
    "train --plan plan.json --ranks 2": "plan: expected 4 devices, as it was made for, got 2: "
    "start 4 processes, or make a plan for 2",
    "train --plan P2x2 --ranks 2": "sequence P2x2: expected 4 processes, got 2: start 4 (--ranks "
    "4, or mpirun -n 4), or choose a sequence of 2, --plan K2, N2 or M2",
    "train plan.json": "expected no more arguments of primepar train, got plan.json: write --plan "
    "plan.json",
    "train run.toml": "expected no more arguments of primepar train, got run.toml: write --config "
    "run.toml",
    "train --devices 4": "--devices: expected an option of primepar train, got no such one: write "
    "--ranks",
    "train --gpus 4": "--gpus: expected an option of primepar train, got no such one: write "
    "--ranks",
    "train --lr 0.1": "--lr: expected an option of primepar train, got no such one: write --set "
    "optimizer.lr=VALUE",
    "train --sequence K4": "--sequence: expected an option of primepar train, got no such one: "
    "write --plan",
    "train --data nowhere.txt": "nowhere.txt: expected a file of text to train on, got no such "
    "file or directory: check --data",
    "exercise 99": "expected an exercise from 1 to 23, got 99: primepar exercise lists them",
    "exercise one": "N: expected an integer, got 'one': see primepar exercise --help",
    "show primepar --side 2 -o out.png": "--output: expected a name that ends with .svg (the "
    "picture) or .json (the trace), got out.png",
}

# What a file of one's own may have; the message of `primepar verify mine.py:Mine`

AT, NEXT = "mine.py:6: Mine.", "mine.py:7: Mine."
FILES = {
    # The file
    "": "mine.py:Mine: expected a class that derives from primepar.Primitive, got none in mine.py: "
    "write class Mine(Primitive)",
    "x = 1\n": "mine.py:Mine: expected a class that derives from primepar.Primitive, got none in "
    "mine.py: write class Mine(Primitive)",
    "class Mine:\n    axes = ('r',)\n": "mine.py:Mine: expected a class that derives from "
    "primepar.Primitive, got one that does not: write class Mine(Primitive)",
    RIGHT.replace("Mine", "Mein"): "mine.py:Mine: expected a primitive of mine.py, got no class "
    "Mine: write mine.py:Mein",
    "def f(:\n": "mine.py:1: expected a file that can be imported, got SyntaxError: invalid syntax "
    "(mine.py, line 1)",
    RIGHT.replace("    def", "\tdef"): "mine.py:6: expected a file that can be imported, got "
    "TabError: inconsistent use of tabs and spaces in indentation (mine.py, line 6)",
    "import nosuch\n": "mine.py:1: expected a file that can be imported, got ModuleNotFoundError: "
    "No module named 'nosuch': install it in this environment, or correct its name",
    "x = 1 / 0\n": "mine.py:1: expected a file that can be imported, got ZeroDivisionError: "
    "division by zero",
    "import sys\nsys.exit(3)\n": "mine.py:2: expected a file that can be imported, got SystemExit: "
    "3",
    # Axes
    HEAD + "    " + forward("dict(M=r, N=(r + c + t) % s)", "self, r, c, t, s"):
        "Mine.axes: expected the device axes of forward(self, r, c, t, s), got none: write axes = "
        '("r", "c")',
    mine(forward("dict(M=r)"), axes='axes = "r"'): 'mine.py:Mine: expected axes like ("r", "c") or '
    """{"r": "q", "e": "d"}, got 'r': write ("r",)""",
    mine(forward("dict(M=r)"), axes='axes = ("rc")'): 'mine.py:Mine: expected axes like ("r", "c") '
    """or {"r": "q", "e": "d"}, got 'rc': write ("r", "c")""",
    mine(forward("dict(M=r)"), axes="axes = 2"): 'mine.py:Mine: expected axes like ("r", "c") or '
    '{"r": "q", "e": "d"}, got 2',
    mine(forward("dict(M=r)"), axes='axes = ("r", "r")'): "Mine.axes: expected names of axes and "
    "sides, got 'r' twice: each axis, each side and the step t need a name of their own",
    mine(forward("dict(M=r)"), axes='axes = ("s",)'): "Mine.axes: expected names of axes and "
    "sides, got 's' twice: each axis, each side and the step t need a name of their own",
    mine(forward("dict(M=r)"), axes='axes = ("r", "c")'): f"{AT}forward: expected forward(self, r, "
    "c, t, s), got forward(self, r, t, s): add c",
    # Methods and their arguments
    mine("pass"): "Mine.forward: expected a method forward(self, r, t, s), got none: write it, the "
    "other phases have its map unless they have their own",
    mine("def foward(self, r, t, s): return dict(M=r)"): f"{AT}foward: expected names out of axes, "
    "virtual, steps, forward, backward, gradient, home, sent, held, got 'foward': write forward",
    mine(forward("dict(M=r)"), "def backwards(self, r, t, s): return dict(M=t)"):
    f"{NEXT}backwards: expected names out of axes, virtual, steps, forward, backward, gradient, "
    "home, sent, held, got 'backwards': write backward",
    mine(forward("dict(M=r)", "self, r, s")): f"{AT}forward: expected forward(self, r, t, s), got "
    "forward(self, r, s): add t",
    mine(forward("dict(M=r)", "self, r, t")): f"{AT}forward: expected forward(self, r, t, s), got "
    "forward(self, r, t): add s",
    mine(forward("dict(M=r)", "self, r, c, t, s")): f"{AT}forward: expected forward(self, r, t, "
    "s), got forward(self, r, c, t, s): leave c out, or add it to axes",
    mine(forward("dict(M=r)"), "steps = 2"): "Mine.steps: expected a method steps(self, s), got "
    "int 2: write def steps(self, s)",
    mine(forward("dict(M=r)"), "def steps(self): return 2"): f"{NEXT}steps: expected steps(self, "
    "s), got steps(self): add s",
    mine(forward("dict(M=r)"), "def steps(self, s): return s / 2"): f"{NEXT}steps: {LANGUAGE}, "
    "got / in s / 2: use // for a quotient of whole numbers",
    mine(forward("dict(M=r)"), "def __init__(self, q): pass"): "mine.py:Mine: expected a class "
    "that can be called without arguments, got TypeError: Mine.__init__() missing 1 required "
    "positional argument: 'q'",
    # What a map returns
    mine(forward("[r, t]")): f"{AT}forward: expected dict(M=..., N=..., K=...), got list: return "
    "the slice index of each dim that the map splits",
    mine(forward("dict(m=r)")): f"{AT}forward: expected dims out of B, M, N, K, got 'm': write M",
    mine(forward("dict(Q=r)")): f"{AT}forward: expected dims out of B, M, N, K, got 'Q': leave out "
    "a dim that is not split",
    mine(forward("{M: r}")): f"{AT}forward: expected a map that can be called as "
    "forward(self, r, t, s), got NameError: name 'M' is not defined: write dict(M=...)",
    mine(forward('{"M", r}')): f"{AT}forward: {LANGUAGE}, got a device, step or side "
    "as a member of a set or a key of a dict: write dict(M=..., N=...)",
    # What an index is computed with
    "import numpy as np\n" + index("np.where(t == 0, 1, 0)"): f"mine.py:7: Mine.forward: {LANGUAGE}"
    ", got NumPy's where: use primepar.where",
    "import torch\n" + index("torch.where(t == 0, 1, 0)"): f"mine.py:7: Mine.forward: {LANGUAGE}, "
    "got torch's where: use primepar.where",
    index("where(t == 0, 1, 0)").replace(", where", ""): f"{AT}forward: expected a map "
    "that can be called as forward(self, r, t, s), got NameError: name 'where' is not defined: "
    "write from primepar import where",
    "import math\n" + index("math.floor(t / 2)"): f"mine.py:7: Mine.forward: {LANGUAGE}, {ROUNDED}",
    index("int(t / 2)"): f"{AT}forward: {LANGUAGE}, {ROUNDED}",
    index("t / 2"): f"{AT}forward: {LANGUAGE}, got / in t / 2: use // for a quotient of whole "
    "numbers",
    index("t * 0.5"): f"{AT}forward: {LANGUAGE}, got float 0.5: use whole numbers",
    index("1.0"): f"{AT}forward: {LANGUAGE}, got float 1.0: use whole numbers",
    index("'t'"): f"{AT}forward: {LANGUAGE}, got str t: use whole numbers",
    index("0 if t == 0 else 1"): f"{AT}forward: {LANGUAGE}, {IF}",
    index("min(t, 1)"): f"{AT}forward: {LANGUAGE}, {IF}",
    index("where(t == 0 and r == 0, 1, 0)"): f"{AT}forward: {LANGUAGE}, {IF}",
    index("t == 0"): f"{AT}forward: {LANGUAGE}, got a comparison that is used as a number: write "
    "where(condition, 1, 0)",
    index("t >> 1"): f"{AT}forward: {LANGUAGE}, got bits of a device, step or side: "
    "write // 2 and % 2, and join conditions with &, | and ~",
    index("[0, 1][t]"): f"{AT}forward: {LANGUAGE}, got a device, step or side that is "
    "turned into a number, looked up or counted with: use +, -, *, //, % and where",
}  # fmt: skip

# Other ways to name a file, and files that are no programs: name, its text, the call, the message

OTHERS = [
    ("mine.py", RIGHT, "verify mine.py:mine", "mine.py:mine: expected a primitive of mine.py, got "
     "no class mine: write mine.py:Mine"),
    ("mine.py", RIGHT, "verify mine:Mine", "mine:Mine: expected file.py:Class, got no .py: write "
     "mine.py:Mine"),
    ("mine.py", RIGHT, "verify mine.Mine", "mine.Mine: expected file.py:Class, got no .py: write "
     "mine.py:Mine"),
    ("mine.py", RIGHT, "verify mine.py.Mine", "mine.py.Mine: expected a Python file, found none: "
     "write mine.py:Mine"),
    ("mine.py", RIGHT, "verify mine.py Mine", "expected no more arguments of primepar verify, got "
     "Mine: write mine.py:Mine"),
    ("mine.py", RIGHT, "verify mien.py:Mine", "mien.py: expected a Python file, found none: write "
     "mine.py"),
    ("mine.py", RIGHT + "\n\nclass Other(Mine): pass\n", "verify mine.py", "mine.py: expected a "
     "primitive of mine.py, got several primitives: write mine.py:Mine or mine.py:Other"),
    ("mine.py", index("r - t"), "check mine.py:Mine --side 2", f"{AT}forward: expected a "
     "slice index of N that is 0 or more, got -1 at r=0, t=1, sides (2,): wrap it with % of the "
     "side"),
    ("empty.json", "", "verify empty.json", "empty.json: expected JSON, got broken text: Input "
     "data was truncated"),
    ("list.json", "[]", "verify list.json", "list.json: Expected `object`, got `array`"),
    ("a.json", '{"model_type": "gpt2"}', "verify a.json", 'a.json: expected a file with "format": '
     '"primepar-program" or "primepar-plan", got an object without a format: a config.json goes '
     "with --model"),
    ("a.json", '{"format": "primepar-program",}', "verify a.json", "a.json: expected JSON, got "
     "broken text: JSON is malformed: trailing comma in object (byte 30)"),
    ("run.toml", "[training]\nstep = 3\n", "train --config run.toml", "run.toml: expected a key "
     "like optimizer.lr, got 'training.step': write training.steps=3"),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of a user, with a model and a plan for four devices."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLES / "config.json", tmp_path)
    model = load_config(tmp_path / "config.json")
    save_plan(preset_plan("megatron", model, 4), tmp_path / "plan.json")
    return tmp_path


def refused(call: str) -> str:
    """The line after `primepar: error: ` of a call that ends with 2 and prints nothing else."""
    done = run(*shlex.split(call))
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    return done.err.removeprefix("primepar: error: ").removesuffix("\n")


@pytest.mark.parametrize("call", CALLS)
def test_a_call(call: str, folder: Path) -> None:
    assert refused(call) == CALLS[call]


@pytest.mark.parametrize("text", FILES)
def test_a_file_of_ones_own(text: str, folder: Path) -> None:
    (folder / "mine.py").write_text(text)
    assert refused("verify mine.py:Mine") == FILES[text]


@pytest.mark.parametrize(("name", "text", "call", "message"), OTHERS)
def test_another_way_to_name_a_file(
    name: str, text: str, call: str, message: str, folder: Path
) -> None:
    (folder / name).write_text(text)
    assert refused(call) == message


@pytest.mark.parametrize(
    "call", ["-h", "--help", "help", "verify -h", "help verify", "verify --help"]
)
def test_help_is_help_however_it_is_asked_for(call: str) -> None:
    done = run(*call.split())
    expected = run("verify", "--help") if "verify" in call else run("--help")
    assert (done.code, done.err) == (0, "")
    assert done == expected


def test_a_file_with_one_primitive_and_two_json_are_taken(folder: Path) -> None:
    (folder / "mine.py").write_text(mine(forward("dict(N=r)"), "def steps(self, s): return 1"))
    assert run("check", "mine.py", "--side", "2").code == 0
    assert run("check", "mine.py::Mine", "--side", "2").code == 0
    once = run("check", "primepar", "--side", "2", "--json")
    assert run("check", "primepar", "--side", "2", "--json", "--json") == once
    assert (once.code, once.err) == (0, "")


CAUSE = (
    "likely cause: mine.py:6: Mine.forward: N=r + t reaches 2 on side 2, at r=1, t=1: write "
    "N=(r + t) % s"
)


@pytest.mark.parametrize("call", ["verify mine.py:Mine", "check mine.py:Mine --side 2"])
def test_a_forgotten_side_is_refuted_with_its_likely_cause(call: str, folder: Path) -> None:
    (folder / "mine.py").write_text(index("r + t"))
    done = run(*call.split())
    assert (done.code, done.err) == (1, "")
    assert f"\n  {CAUSE}\n" in done.out
