"""A program is proved before it runs, once for each content."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
from loaded import modules_of
from step_cases import lowered, place, spoilt

from primepar.commands import proof
from primepar.errors import RefutedError
from primepar.schedule.program import Instruction


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "primepar" / "proofs"


def test_a_program_is_proved_once(folder: Path) -> None:
    program = lowered("data", 2, "gpt2")
    assert proof.prove(program, "data").startswith("proved in ")
    assert len(list(folder.iterdir())) == 1
    with patch("primepar.verify.verify_program", side_effect=AssertionError("proved again")):
        assert proof.prove(program, "data") == "proved before"


def unsummed(rank: int, own: list[Instruction]) -> None:
    del own[place(own, "all_reduce norm.weight.grad[0]")]


def test_one_that_is_refuted_is_not_kept_and_ends_in_one_line(folder: Path) -> None:
    wrong = spoilt(lowered("data", 2, "gpt2"), unsummed)
    for _ in range(2):
        with pytest.raises(RefutedError) as caught:
            proof.prove(wrong, "plan.json")
    assert str(caught.value).startswith(
        "plan.json: expected a program that is proved, got completion refuted: rank 0, "
    )
    assert str(caught.value).endswith(
        "; look at it with primepar verify, or add --set checks.verify=false to run it all the same"
    )
    assert "\n" not in str(caught.value)
    assert not folder.exists()
    assert RefutedError.exit_code == 1


def test_another_prover_proves_again(folder: Path) -> None:
    program = lowered("data", 2, "gpt2")
    proof.prove(program, "data")
    with patch.object(proof, "digest_of_code", return_value=b"another"):
        assert proof.prove(program, "data").startswith("proved in ")
    assert len(list(folder.iterdir())) == 2


def test_a_verdict_depends_on_all_packages_that_proving_loads_but_pictures() -> None:
    names = (name.split(".") for name in modules_of("import primepar.verify.program"))
    packages = {path[1] for path in names if path[0] == "primepar" and len(path) > 2}
    assert packages - {"pictures"} == {*proof.PROVERS}


def test_without_a_folder_it_is_proved_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        assert proof.prove(lowered("data", 2, "gpt2"), "data").startswith("proved in ")
