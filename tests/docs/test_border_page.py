"""The page on where PrimePar is the fastest has what is simulated now."""

from __future__ import annotations

from pathlib import Path

from docs.render_border import FAMILIES, LETTERS, PAGE, PANELS, PICTURE, H, hidden, table


def test_a_row_of_each_panel_and_the_times_are_those_of_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert "\n".join(hidden()) in page
    for panel in PANELS:
        for row in table(panel, (H,)):
            assert f"{row}\n" in page, "python -m docs.render_border writes it again"


def test_the_picture_has_the_cells_of_the_page_and_a_legend_of_what_is_drawn() -> None:
    page, drawn = PAGE.read_text(encoding="utf-8"), Path(PICTURE).read_text(encoding="utf-8")
    for family, names in FAMILIES.items():
        wins = sum(page.count(f"| {name} ") for name in names) + (family == "PrimePar") * (
            page.count("**P**")
        )
        assert drawn.count(f">{LETTERS[family]}</text>") == (wins + 1 if wins else 0)
        assert (f">{family}</text>" in drawn) == (wins > 0)
