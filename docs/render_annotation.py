"""What code scanning shows of a refuted script: its lines, with the findings of a SARIF file.

    primepar preflight -n 2 --sarif stages.sarif stages.py
    python docs/render_annotation.py stages.sarif stages.py docs/images/annotation.svg

The picture is made from the SARIF file alone, as a code scanner makes its page: the message of a
result under its location, and what another rank does under each related location.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import wrap
from typing import Any

from primepar.pictures.svg import GREY, RED, element, mono, picture

LINE, COLUMNS, LEFT, SIZE = 16.0, 96, 52.0, 11
NEIGHBOURS = 2
"""Lines that are shown around an annotated one."""


def annotations(log: dict[str, Any]) -> dict[int, list[tuple[str, str]]]:
    """Line -> the colours and texts below it."""
    below: dict[int, list[tuple[str, str]]] = {}
    for run in log["runs"]:
        for result in run["results"]:
            message = f"{result['ruleId']}: {result['message']['text'].partition(chr(10))[0]}"
            places = [(RED, place) for place in result["locations"]]
            places += [(GREY, place) for place in result.get("relatedLocations", ())]
            for colour, place in places:
                text = place["message"]["text"]
                line = place["physicalLocation"]["region"]["startLine"]
                listed = f"{message} / {text}" if colour == RED else text
                below.setdefault(line, []).append((colour, listed))
    return below


def annotated(log: dict[str, Any], source: str) -> str:
    """Return the picture of a script with what is annotated, and the lines around that."""
    below, lines = annotations(log), source.splitlines()
    first, last = min(below) - NEIGHBOURS, max(below) + NEIGHBOURS
    marks, y = list[str](), LINE
    for number in range(max(first, 1), min(last, len(lines)) + 1):
        marks.append(mono(str(number), LEFT - 14, y, text_anchor="end", font_size=SIZE))
        indented = lines[number - 1].replace(" ", "\N{NO-BREAK SPACE}")
        colour = below[number][0][0] if number in below else GREY
        marks.append(mono(indented, LEFT, y, font_size=SIZE, fill=colour))
        y += LINE
        for colour, text in below.get(number, ()):
            words = wrap(text, COLUMNS)
            height = LINE * len(words) + 6
            marks.append(element(
                "rect", x=LEFT, y=y - LINE + 6, width=COLUMNS * 6.8, height=height, rx=4,
                fill=colour, fill_opacity=0.1, stroke=colour,
            ))  # fmt: skip
            for word in words:
                marks.append(mono(word, LEFT + 8, y + 4, font_size=SIZE, fill=colour))
                y += LINE
            y += 10
    label = "A script with what preflight refutes, at its lines"
    return picture(LEFT + COLUMNS * 6.8 + 12, y - 4, marks, label)


if __name__ == "__main__":
    findings, script, output = map(Path, sys.argv[1:])
    log = json.loads(findings.read_text(encoding="utf-8"))
    output.write_text(annotated(log, script.read_text(encoding="utf-8")), encoding="utf-8")
