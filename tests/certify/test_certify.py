"""`primepar verify --certificate`: a certificate is written, and one that is there is checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from command import run
from profiles import few

from primepar.certify.claims import PROPERTIES
from primepar.verify.primitive import proof

ROOT = Path(__file__).resolve().parents[2]
BROKEN = ROOT / "primepar" / "commands" / "broken"
WALK = f"{BROKEN / '07_walk.py'}:Walk"
HEAD_ON = str(ROOT / "docs" / "examples" / "head-on.json")


@few
@pytest.mark.parametrize(
    ("target", "options", "verdict", "outcome"),
    [
        ("summa", (), 0, "is proved for every s >= 1"),
        ("tesseract", (), 0, "is proved for every q, d >= 1"),
        ("summa", ("--side", "2"), 0, "is proved for side 2"),
        ("K,P", (), 0, "is proved for every s1, s2 >= 1"),
        ("K,P2x2", (), 0, "is proved as given"),
        (HEAD_ON, (), 1, "is refuted as given"),
        (HEAD_ON, ("--buffered",), 0, "is proved as given, with buffered sends"),
        (WALK, (), 1, "is refuted for side 3"),
    ],
)
def test_what_verify_writes_certify_takes(
    tmp_path: Path, target: str, options: tuple[str, ...], verdict: int, outcome: str
) -> None:
    file = tmp_path / "proof.json"
    done = run("verify", target, *options, "--certificate", str(file))
    assert done.code == verdict
    assert done.err == f"wrote {file}\n"
    checked = run("verify", target, "--certificate", str(file))
    assert checked.code == verdict
    assert checked.out.splitlines()[0] == f"{file}: holds: {target} {outcome}"


def test_the_step_of_a_plan_has_a_certificate(tmp_path: Path) -> None:
    file = tmp_path / "proof.json"
    making = ("--model", str(ROOT / "docs" / "examples" / "config.json"), "--devices", "2",
              "--positions", "2")  # fmt: skip
    assert run("verify", "megatron", *making, "--certificate", str(file)).code == 0
    checked = run("verify", "megatron", *making, "--certificate", str(file))
    assert checked.out.splitlines()[0] == f"{file}: holds: megatron is proved as given"


def test_json_names_what_holds(tmp_path: Path) -> None:
    file = tmp_path / "proof.json"
    assert run("verify", "summa", "--certificate", str(file)).code == 0
    printed = msgspec.json.decode(run("verify", "summa", "--json", "--certificate", str(file)).out)
    assert printed == {
        "certificate": str(file),
        "target": "summa",
        "holds": True,
        "verdict": "proved",
        "scope": "for every s >= 1",
        "properties": [*PROPERTIES],
        "reason": None,
    }
    done = run("verify", "output-stays", "--json", "--certificate", str(file))
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "primepar: error: expected a certificate of OutputStays, got one of another primitive: "
        "its maps are not the same\n"
    )


SHARED = {
    f"primepar.verify{package}" for package in ("", ".counterexample", ".counterexample.data")
}
"""What the command line loads for its pictures: counterexamples as data."""


def loaded(code: str) -> set[str]:
    """Modules of the prover and the solver that Python loads for some code."""
    watch = "print(*(m for m in sys.modules if m == 'z3' or m.startswith('primepar.verify')))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\n{watch}"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_neither_a_solver_nor_the_prover_is_loaded(tmp_path: Path) -> None:
    code = "from primepar.cli import main\n"
    for target in ("summa", "K,P2x2"):
        file = str(tmp_path / f"{target}.json")
        assert run("verify", target, "--certificate", file).code == 0
        code += (
            f"sys.argv = ['primepar', 'verify', {target!r}, '--certificate', {file!r}]\n"
            "try: main()\n"
            "except SystemExit as end: assert end.code == 0, end.code\n"
        )
    assert loaded(code) <= SHARED
    assert loaded("import primepar.certify.certificate_file") == set()
    assert "primepar.verify.report" in loaded("import primepar.verify.report")


def test_memory_alone_is_certified_too(tmp_path: Path) -> None:
    file, target = tmp_path / "proof.json", str(BROKEN / "10_memory.json")
    assert run("verify", target, "--certificate", str(file)).code == 1
    done = run("verify", target, "--certificate", str(file))
    assert (done.code, done.out) == (
        1, f"{file}: holds: {target} is refuted as given\n  memory\n",
    )  # fmt: skip


def test_a_refuted_sequence_without_lengths_has_no_certificate(tmp_path: Path) -> None:
    file, target = tmp_path / "proof.json", f"M,{ROOT}/tests/wrong/late.py:Late"
    done = run("verify", target, "--certificate", str(file))
    assert done.code == 1
    assert done.err == (
        f"{target}: no certificate, as a refutation has one on one mesh only: write lengths, like "
        f"M2,Late2x2, or certify what --minimal writes: {file} is not written\n"
    )
    assert not file.exists()


def test_an_unknown_verdict_has_no_certificate(tmp_path: Path) -> None:
    file = tmp_path / "proof.json"
    done = run("verify", "primepar", "--timeout", "0.001", "--certificate", str(file))
    assert done.code == 3
    assert done.err == (
        f"primepar: no certificate, as the verdict is unknown: {file} is not written\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "got Object missing required field `type`"),
        ('{"type": "program"}', "got Object missing required field `format`"),
        ('{"type": "plan"}', "got Invalid value 'plan' - at `$.type`"),
    ],
)
def test_a_malformed_certificate_is_refused_in_one_line(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "proof.json"
    file.write_text(text)
    done = run("verify", "primepar", "--certificate", str(file))
    assert done == (2, "", (
        f"primepar: error: {file}: expected a certificate that `primepar verify --certificate` "
        f"wrote, {message}\n"
    ))  # fmt: skip


def test_a_certificate_of_another_kind_of_target_is_refused(tmp_path: Path) -> None:
    file, of_side = tmp_path / "proof.json", tmp_path / "side.json"
    assert run("verify", "summa", "--certificate", str(file)).code == 0
    done = run("verify", "K,P2x2", "--certificate", str(file))
    assert done == (2, "", f"primepar: error: K,P2x2: expected the target that {file} is about, "
                    "got a target of another kind\n")  # fmt: skip
    assert run("verify", "summa", "--side", "2", "--certificate", str(of_side)).code == 0
    done = run("verify", "K,P2x2", "--certificate", str(of_side))
    assert done == (2, "", "primepar: error: K,P2x2: expected a primitive, as the certificate is "
                    "of one with --side 2, got another target\n")  # fmt: skip


def test_a_certificate_that_is_there_is_checked_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "proof.json"
    assert run("verify", HEAD_ON, "--buffered", "--certificate", str(file)).code == 0
    text = file.read_text()
    done = run("verify", HEAD_ON, "--buffered", "--certificate", str(file))
    assert done == (2, "", f"primepar: error: --buffered: expected none with --certificate {file}, "
                    "which is there and is checked as it is, got one: leave it out, or name a file "
                    "that is not there\n")  # fmt: skip
    assert file.read_text() == text


def test_a_certificate_that_does_not_hold_proves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "proof.json"
    assert run("verify", HEAD_ON, "--buffered", "--certificate", str(file)).code == 0
    forged = file.read_text().replace('"slots":null', '"slots":0')
    file.write_text(forged)
    done = run("verify", HEAD_ON, "--certificate", str(file))
    assert (done.code, done.err) == (3, "")
    assert done.out.startswith(f"{file}: does not hold: ")


def test_a_certificate_is_a_json_file(tmp_path: Path) -> None:
    done = run("verify", "summa", "--certificate", str(tmp_path / "proof.txt"))
    assert done == (2, "", "primepar: error: --certificate: expected a name that ends with .json "
                    f"(the certificate), got {tmp_path / 'proof.txt'}\n")  # fmt: skip


def test_what_no_certificate_covers_is_proved_by_z3_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "_certified", lambda *_: None)
    file = tmp_path / "proof.json"
    done = run("verify", "summa", "--certificate", str(file))
    assert done.code == 0
    lines = done.out.splitlines()[1:7]
    assert [line.split()[0] for line in lines] == [*PROPERTIES]
    assert all("proved by Z3, not certified" in line for line in lines)
    assert done.err == (
        f"summa: no certificate, as Z3 proved what none was found for: {file} is not written\n"
    )
    assert not file.exists()
    report = msgspec.json.decode(run("verify", "summa", "--json").out)
    assert [result["certified"] for result in report["properties"][:6]] == [False] * 6
