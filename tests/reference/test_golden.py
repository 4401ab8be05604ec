"""The golden fixture refuses what is missing or differs."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Golden

ADVICE = "if the new text is right, run: pytest --update-golden, and read the diff"


def test_a_text_written_with_the_switch_is_accepted_without_it(tmp_path: Path) -> None:
    Golden(tmp_path, update=True)("folder/grid", "0 1\n1 0")
    assert (tmp_path / "folder" / "grid.txt").read_text() == "0 1\n1 0\n"
    Golden(tmp_path, update=False)("folder/grid", "0 1\n1 0\n")


def test_a_missing_text_names_the_switch(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as caught:
        Golden(tmp_path, update=False)("grid", "0 1")
    assert str(caught.value).splitlines()[0] == f"no golden text grid.txt; {ADVICE}"
    assert not (tmp_path / "grid.txt").exists()


def test_a_changed_text_names_the_switch_and_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "grid.txt").write_text("0 1\n")
    with pytest.raises(AssertionError) as caught:
        Golden(tmp_path, update=False)("grid", "1 0")
    assert str(caught.value).splitlines()[0] == f"grid.txt differs; {ADVICE}"
    assert (tmp_path / "grid.txt").read_text() == "0 1\n"
