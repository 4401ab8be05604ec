"""What users' files can do: replace themselves, blow up, hide text, or be no files at all."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import unicodedata
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import msgspec
import pytest
from command import run
from profiles import few

from primepar import reading
from primepar.cli import EXAMPLES, OUTPUTS
from primepar.errors import OutputError, PrimeParError, TextError
from primepar.files import announce, one_command, replace, write_text
from primepar.plan.cluster import load_cluster, read_cluster, shipped_clusters
from primepar.reading import json_of, open_input, read_bytes, read_json, toml_of
from primepar.schedule.signature import Name

PROGRAM = (
    '{"format": "primepar-program", "version": 1, "ranks": 2, "programs": [[{"op": "send", "peer": '
    '1, "block": "A"}, {"op": "recv", "peer": 1, "block": "B"}], [{"op": "send", "peer": 0, '
    '"block": "B"}, {"op": "recv", "peer": 0, "block": "A"}]]}'
)
PRIMITIVE = """
from primepar import Primitive
class Mine(Primitive):
    axes = ("r",)
    def forward(self, r, t, s): return dict(M=r)
    def steps(self, s): return 1
"""
CONFIG = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": 8,
          "vocab_size": 16}  # fmt: skip


@cache
def planned() -> str:
    """A plan for `config.json`, in the folder that is the current one at the first call."""
    done = run("plan", "config.json", "--cluster", "h100-8", "--devices", "2", "-o", "first.json")
    assert done.code == 0, done.err
    text = Path("first.json").read_text()
    Path("first.json").unlink()
    return text


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("f.json", "f.svg", "f.sarif", "f.et"):
        Path(name).write_text(PROGRAM)
    Path("mine.py").write_text(PRIMITIVE)
    Path("config.json").write_text(json.dumps(CONFIG))
    Path("config.svg").symlink_to("config.json")
    cluster = Path("cluster.toml")
    cluster.write_bytes((load_cluster.__globals__["SHIPPED_CLUSTERS"] / "h100.toml").read_bytes())
    for ending in ("json", "svg", "txt"):
        os.link(cluster, f"cluster.{ending}")
    Path("plan.json").write_text(planned())
    Path("plan.svg").symlink_to("plan.json")
    return tmp_path


ON_CLUSTER = ("--cluster", "cluster.toml", "--devices", "2")
REPLACED = {
    ("verify", "smallest"): ("verify", "f.json", "--minimal", "f.json"),
    ("verify", "output"): ("verify", "plan.json", "--output", "plan.svg"),
    ("show", "output"): ("show", "plan.json", "-o", "plan.svg"),
    ("show", "html"): None,  # reads no file of this ending, but through a link
    ("exercise", "output"): None,  # reads nothing but what is shipped
    ("preflight", "output"): ("preflight", "-o", "f.json", "f.json"),
    ("preflight", "picture"): ("preflight", "--picture", "plan.svg", "plan.json"),
    ("preflight", "repaired"): ("preflight", "--repair", "f.json", "f.json"),
    ("preflight", "sarif"): None,  # reads no file of this ending, but through a link
    ("plan", "output"): ("plan", "config.json", *ON_CLUSTER, "-o", "config.json"),
    ("profile", "output"): None,  # reads nothing
    ("search", "output"): ("search", "mine.py:Mine", "-o", "./mine.py"),
    ("simulate", "output"): ("simulate", "P2x2", "--shape", "8,8,8", *ON_CLUSTER[:2], "-o",
                             "cluster.txt"),
}  # fmt: skip
"""Command and parameter that names an output -> a call that would replace an input, if any can."""
INPUTS = {"certificate", "model", "file", "config"}
"""Parameters of commands that are paths and name inputs."""


def test_every_path_of_a_command_is_known_as_input_or_output() -> None:
    seen = set()
    for command, example in EXAMPLES.items():
        for name, hint in get_type_hints(command, include_extras=True).items():
            kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
            if Path in (kind, *get_args(kind)):
                assert name in INPUTS or name in OUTPUTS, (example, name)
                if name in OUTPUTS:
                    seen.add((example.partition(" ")[0], name))
    assert seen == set(REPLACED)


@pytest.mark.parametrize(
    "call", [call for call in REPLACED.values() if call], ids=lambda call: " ".join(call)
)
def test_no_output_replaces_an_input(folder: Path, call: tuple[str, ...]) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    done = run(*call)
    options = ("-o", "--output", "--minimal", "--picture", "--repair")
    output = next(call[place + 1] for place, word in enumerate(call) if word in options)
    read = {"cluster": "cluster.toml", "plan": "plan.json", "config": "config.json"}.get(
        Path(output).stem, Path(output).name
    )
    assert done == (
        2, "", f"primepar: error: {Path(output)}: expected an output that replaces no input, got "
        f"{read}, which this command reads: choose another name\n",
    )  # fmt: skip
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_python_file_is_an_input(folder: Path) -> None:
    os.link("mine.py", "mine.json")
    assert run("verify", "mine.py:Mine", "--minimal", "mine.json").err == (
        "primepar: error: mine.json: expected an output that replaces no input, got mine.py, which "
        "this command reads: choose another name\n"
    )
    assert Path("mine.json").read_text() == PRIMITIVE


@pytest.mark.parametrize("setting", ["output.log", "output.trace", "weights.save"])
def test_a_run_replaces_no_input(folder: Path, setting: str) -> None:
    Path("run.toml").write_text("[training]\nsteps = 1\n")
    os.link("run.toml", "run.json")
    done = run("train", "--config", "run.toml", "--set", f"{setting}=run.json")
    assert done == (
        2, "", "primepar: error: run.json: expected an output that replaces no input, got "
        "run.toml, which this command reads: choose another name\n",
    )  # fmt: skip


def test_two_outputs_have_two_names(folder: Path) -> None:
    assert run("verify", "f.json", "--minimal", "new.json", "--certificate", "./new.json") == (
        2, "", "primepar: error: new.json: expected outputs of different names, got the same name "
        "twice: choose another one\n",
    )  # fmt: skip
    assert not Path("new.json").exists()


def test_a_command_reads_what_it_has_written(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    with one_command():
        announce(path)
        write_text(path, "new")
        assert read_bytes(path) == b"new"
        with pytest.raises(OutputError):
            write_text(path, "newer")
    assert path.read_text() == "new"


def test_a_program_of_ones_own_may_replace_what_it_has_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    assert read_bytes(path) == b"old"
    write_text(path, "new")
    assert path.read_text() == "new"


def test_a_link_is_followed(folder: Path, tmp_path: Path) -> None:
    Path("there").mkdir()
    Path("link.svg").symlink_to("there/grid.svg")
    for _ in range(2):  # also where it leads to no file yet
        assert run("show", "P2x2", "-o", "link.svg").code == 0
        assert Path("link.svg").is_symlink()
        assert Path("there/grid.svg").read_text().startswith("<svg")
        assert [path.name for path in Path("there").iterdir()] == ["grid.svg"]


def test_links_in_a_cycle_pipes_and_devices_are_no_outputs(tmp_path: Path) -> None:
    link, pipe = tmp_path / "a", tmp_path / "p"
    link.symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    os.mkfifo(pipe)
    for path, got in ((link, "too many levels of symbolic links"), (pipe, "a pipe or a device"),
                      (Path("/dev/null"), "a pipe or a device")):  # fmt: skip
        with pytest.raises(PrimeParError) as caught:
            write_text(path, "text")
        assert str(caught.value) == f"{path}: expected a place to write to, got {got}"
    assert Path("/dev/null").is_char_device()
    assert link.is_symlink()


READ = {
    "verify": ("verify", "{}"),
    "certificate": ("verify", "primepar", "--certificate", "{}"),
    "config": ("plan", "{}", "--cluster", "h100-8", "--devices", "2"),
    "cluster": ("plan", "gpt2", "--cluster", "{}", "--devices", "2"),
    "settings": ("train", "--config", "{}"),
    "plan": ("train", "--plan", "{}", "--ranks", "1"),
    "data": ("train", "--data", "{}", "--ranks", "1"),
    "tokens": ("train", "--data", "{}.bin", "--ranks", "1"),
    "tokenizer": ("train", "--set", "training.tokenizer={}", "--ranks", "1"),
    "model": ("verify", "megatron", "--devices", "2", "--model", "{}"),
    "csv": ("preflight", "{}.csv"),
}
"""Ways to name a file that is read; `{}` ends with .json."""


@few
@pytest.mark.parametrize(("way", "kind"), list(product(READ, ("pipe", "device", "folder", "none"))))
def test_what_is_no_file_is_refused_in_one_line(folder: Path, way: str, kind: str) -> None:
    names = {word.format("x.json") for word in READ[way]} - set(READ[way])
    for name in names:
        if kind == "pipe":
            os.mkfifo(name)
        elif kind == "device":
            Path(name).symlink_to("/dev/zero")
        elif kind == "folder":
            Path(name).mkdir()
    done = run(*(word.format("x.json") for word in READ[way]))
    assert (done.code, done.out) == (2, ""), done
    assert done.err.count("\n") == 1
    assert "Traceback" not in done.err


TWICE = '{"a": {"b": [0, {"c": 1, "d": {}, "c": 2}]}}'


def test_a_key_twice_is_refused_with_its_place() -> None:
    with pytest.raises(TextError) as caught:
        json_of(TWICE.encode(), dict)
    assert str(caught.value) == ("$.a.b[1].c: expected the key once, got it twice: leave one out")
    assert json_of(b'{"a": {"a": [{"a": 1}, {"a": 2}]}}', dict)


@pytest.mark.parametrize("way", ["verify", "certificate", "config", "plan", "tokenizer"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'\xef\xbb\xbf{"a": 1}', "expected JSON in UTF-8, got a byte order mark: save it as UTF-8 "
         "without one"),
        ('{"a": 1}'.encode("utf-16"), "expected JSON in UTF-8, got a byte order mark: save it as "
         "UTF-8 without one"),
        (b'{"a": "\xff"}', "expected JSON in UTF-8, got the byte 0xff at 7: save it as UTF-8"),
        (b'{"format": ', "expected JSON, got broken text: Input data was truncated"),
    ],
    ids=["mark", "utf-16", "latin", "cut"],
)  # fmt: skip
def test_every_reader_of_json_refuses_alike(
    folder: Path, way: str, content: bytes, message: str
) -> None:
    Path("x.json").write_bytes(content)
    done = run(*(word.format("x.json") for word in READ[way]))
    option = "training.tokenizer " if way == "tokenizer" else ""
    assert done == (2, "", f"primepar: error: {option}x.json: {message}\n")


def test_every_reader_of_json_refuses_a_key_twice(folder: Path) -> None:
    program = PROGRAM.replace('"version": 1', '"version": 1, "version": 1')
    plan = Path("plan.json").read_text().replace('"ranks"', '"ranks": 2, "ranks"', 1)
    config = json.dumps(CONFIG).replace('"n_layer"', '"n_layer": 1, "n_layer"')
    assert run("verify", "by-input", "--certificate", "c.json").code == 0
    certificate = Path("c.json").read_text().replace('"version"', '"version":3,"version"', 1)
    for way, text, key in (("verify", program, "version"), ("verify", plan, "ranks"),
                           ("config", config, "n_layer"), ("certificate", certificate, "version"),
                           ("tokenizer", '{"a": 1, "a": 1}', "a")):  # fmt: skip
        Path("x.json").write_text(text)
        done = run(*(word.format("x.json") for word in READ[way]))
        option = "training.tokenizer " if way == "tokenizer" else ""
        assert done == (2, "", f"primepar: error: {option}x.json: $.{key}: expected the key once, "
                        "got it twice: leave one out\n")  # fmt: skip


def test_numbers_of_thousands_of_digits_and_deep_json_are_refused(folder: Path) -> None:
    for way in ("verify", "certificate", "config", "plan"):
        for text in ("1" * 5000, "-1e" + "9" * 5000, "[" * 100_000, '{"a":' * 100_000):
            Path("x.json").write_text(f'{{"version": {text}')
            done = run(*(word.format("x.json") for word in READ[way]))
            assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
            assert len(done.err) < 300
    with pytest.raises(TextError) as caught:
        json_of(b"[" * 100_000, list)
    assert str(caught.value) == "expected JSON, got it nested too deeply"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = " + "1" * 5000, "expected a number of at most 300 digits, got a longer one (at line "
         "1)"),
        ("\na = 0x" + "f" * 5000, "expected a number of at most 300 digits, got a longer one (at "
         "line 2)"),
        (".".join("a" * 20_000) + " = 1", "expected a key of at most 32 parts, got a longer one "
         "(at line 1)"),
        ("\n[" + ' . "\\"" . '.join("a" * 20_000) + "]", "expected a key of at most 32 parts, got "
         "a longer one (at line 2)"),
        ("x = {" + ".".join("a" * 33) + " = 1}", "expected a key of at most 32 parts, got a longer "
         "one (at line 1)"),
        ("a = " + "[" * 100_000, "expected TOML, got it nested too deeply"),
        ("#" * 300_000, "expected TOML of at most 262144 bytes, got 300000"),
        ("\ufeffa = 1", "expected TOML in UTF-8, got a byte order mark: save it as UTF-8 without "
         "one"),
        ("a = 1\na = 2", "expected TOML, got broken text: Cannot overwrite a value (at end of "
         "document)"),
    ],
)  # fmt: skip
def test_toml_is_bounded_before_it_is_parsed(text: str, message: str) -> None:
    with pytest.raises(TextError) as caught:
        toml_of(text.encode())
    assert str(caught.value) == message


def test_long_words_in_toml_that_are_no_keys_are_taken() -> None:
    dots = ".".join("a" * 100)
    text = f"""# {dots}
    a . b.'c' = "{dots}"
    d = '''
    {dots}'''
    e = [1.5, 2.5, {{f.g = 0.25}}]
    {".".join("h" * 32)} = 1
    """
    assert toml_of(text.encode())["a"] == {"b": {"c": dots}}
    for name in shipped_clusters():
        load_cluster(name)


@pytest.mark.parametrize("number", ["1e-320", "1e300", "0x" + "f" * 280])
def test_numbers_that_no_machine_has_are_refused_in_every_field(folder: Path, number: str) -> None:
    text = Path("cluster.toml").read_text()
    count = 0
    for line in text.splitlines():
        key, equals, _ = line.partition(" = ")
        if equals and key.isidentifier() and isinstance(toml_of(line.encode())[key], int | float):
            if isinstance(toml_of(line.encode())[key], bool):
                continue
            if number == "1e-320" and key in ("launch", "latency"):
                continue  # seconds may be 0, and nothing is divided by them
            with pytest.raises(PrimeParError) as caught:
                read_cluster(text.replace(line, f"{key} = {number}", 1))
            got = f"{toml_of(f'a = {number}'.encode())['a']!r}"[:24]
            assert str(caught.value).startswith("$.")
            assert str(caught.value).endswith(
                f"{key}: expected a number from 1e-30 to 1e+30, got {got}: correct its exponent"
            )
            count += 1
    assert count > 6


def hidden() -> list[str]:
    kinds = {"Cc", "Cf", "Zl", "Zp"}
    return [letter for letter in map(chr, range(0x110000)) if unicodedata.category(letter) in kinds]


def test_a_name_has_nothing_that_a_terminal_obeys(folder: Path) -> None:
    letters = hidden()
    assert "\u202e" in letters
    for letter in letters:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(f"a{letter}", Name)
    for name in ("I[0,0]", "dO'", "blöcke", "块"):
        assert msgspec.convert(name, Name) == name
    Path("x.json").write_text(PROGRAM.replace('"A"', '"A\u202e"'))
    assert run("verify", "x.json").err == (
        "primepar: error: x.json: Expected a name without control characters - at "
        "`$.programs[0][0].block`\n"
    )


def test_what_is_printed_hides_nothing(folder: Path) -> None:
    name = "a\u202eb\u200b\U000e0041.json"
    Path(name).write_text(PROGRAM)
    shown = "a\\u202eb\\u200b\\udb40\\udc41.json"
    done = run("verify", name)
    assert done.out.startswith(f"{shown}: refuted\n")
    done = run("verify", name, "--json")
    assert json.loads(done.out)["target"] == name
    assert shown in done.out
    assert run("show", name, "-o", "x.txt").err.endswith("got x.txt\n")


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (">&-", "expected an open standard output, got a closed one: write > /dev/null to print "
         "nowhere"),
        ("1</dev/null", "expected an open standard output, got a closed one: write > /dev/null to "
         "print nowhere"),
        (">/dev/full", "expected room for what is written, got a full disk"),
    ],
)  # fmt: skip
def test_an_output_that_takes_nothing_is_an_error(output: str, message: str) -> None:
    done = shell(f"{sys.executable} -m primepar --version {output}")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"primepar: error: {message}\n")


def test_an_output_that_nobody_reads_ends_the_command_quietly() -> None:
    done = shell(f"{sys.executable} -m primepar list --json | true; echo ${{PIPESTATUS[0]}}")
    assert (done.stdout, done.stderr) == ("141\n", "")


def shell(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False)


def test_a_checkout_without_links_states_what_to_set(tmp_path: Path) -> None:
    import primepar

    source = Path(primepar.__file__).parent
    copy = tmp_path / "primepar"
    copy.mkdir()
    for path in source.iterdir():
        if path.is_symlink():
            (copy / path.name).write_text(str(path.readlink()))
        elif path.name != "__pycache__":
            (copy / path.name).symlink_to(path)
    done = subprocess.run(
        [sys.executable, "-P", "-c", "import primepar.verify"], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=False,
    )  # fmt: skip
    assert done.stderr.splitlines()[-1] == (
        "ImportError: primepar/reference: expected a link to a folder, got a file: "
        "run git config core.symlinks true, then git checkout -- primepar"
    )


def test_a_sparse_file_of_any_size_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(PrimeParError) as caught:
        read_json(path, dict, "a file", PrimeParError)
    assert str(caught.value) == (
        f"{path}: expected a file, got {1 << 40} bytes, more than {1 << 31}"
    )
    with open_input(path) as file:
        assert file.read(1) == b"\0"
    replace(path, b"")


def test_users_files_are_read_and_written_in_one_place_each() -> None:
    """Anything else that opens a file is listed here, with whose file it is."""
    opens = re.compile(
        r"\.(?:read|write)_(?:bytes|text)\(|(?<!os)\.open\(|\bopen\(|tomllib\.|json\.loads?\("
        r"|json\.decode\(|safe_open\("
    )
    others = {
        "files.py": "the place to write in; sources of primepar",
        "reading.py": "the place to read in",
        "plan/plan.py": "a look at the format; what is then read is checked",
        "schedule/program_file.py": "the schema",
        "models/tensor_file.py": "the part to be named; entries of a header that is checked",
        "models/hugging_face.py": "a new folder; files of a tokenizer are copied as they are",
        "preflight/cases.py": "its own file",
        "preflight/importers/flight_recorder.py": "a text in a dump that is checked",
        "preflight/capture/torch_script.py": "/dev/null",
        "preflight/capture/user_code.py": "a script, as Python reads it",
        "preflight/capture/torch_capture.py": "a script and modules next to it, as Python does",
        "cli.py": "/dev/null",
        "commands/exercise.py": "shipped",
        "commands/exercise_catalog.py": "shipped",
        "pictures/page_html.py": "shipped",
        "distributed/runtime/step_programs.py": "of another rank",
        "distributed/training/watchdog.py": "of another rank",
        "distributed/training/backends.py": "of another rank",
        "distributed/training/launch.py": "of another rank",
        "distributed/training/run.py": "of another rank",
        "distributed/checkpoints/saving.py": "of another rank",
        "distributed/training/log.py": "the log, to append to it",
        "distributed/training/data.py": "of the standard library",
        "distributed/profiling/measure.py": "/proc",
        "distributed/text/tokenize.py": "the lock, the part to be named, of the package tokenizers",
        "distributed/checkpoints/shards.py": "a new file; files of a manifest that are checked",
        "distributed/checkpoints/folder.py": "the lock",
    }
    root = Path(reading.__file__).parent
    seen = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if opens.search(path.read_text())
    }
    assert seen <= set(others), seen - set(others)
