"""One page that moves, as one HTML file: its scripts, its styles and the data that they draw.

The scripts are `page/*.js`, plain JavaScript without a build step. They are put into the page as
they are, so it works from a file, without a network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "page"
SCRIPTS = (
    "expression.js", "mesh_maps.js", "sentences.js", "events.js", "scene.js", "mesh_view.js",
    "time_view.js", "editor.js", "prover.js", "waits.js", "gallery.js", "page.js",
)  # fmt: skip
"""In the order in which they are read; each uses only those before it."""


def page_html(title: str, data: Mapping[str, Any]) -> str:
    """Return the page of this data, as `primepar.api.page_data` makes it."""
    parts = {
        "TITLE": escape(title),
        "STYLE": (FOLDER / "page.css").read_text(encoding="utf-8"),
        # In a script element only `</` would end the data.
        "DATA": json.dumps(data, separators=(",", ":")).replace("</", "<\\/"),
        "SCRIPT": "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS),
    }
    page = (FOLDER / "page.html").read_text(encoding="utf-8")
    for name, text in parts.items():
        page = page.replace(f"<!--{name}-->", text)
    return page
