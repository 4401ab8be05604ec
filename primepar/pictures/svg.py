"""SVG by string building: the few elements that the pictures need, and their colours."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

GREY = "#7d8590"
"""Text and rules: as legible on a white page as on a dark one."""
SANS = "ui-sans-serif, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, 'DejaVu Sans Mono', monospace"


def element(name: str, *children: str, **attributes: object) -> str:
    """Return one element; `_` in an attribute stands for `-`, and floats keep two decimals."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
    )
    return f"<{name}{written}>{''.join(children)}</{name}>" if children else f"<{name}{written}/>"


def _attribute(value: object) -> str:
    return escape(_text(value), quote=False).replace('"', "&quot;")


def text(content: str, x: float, y: float, **attributes: object) -> str:
    """Return a text element, grey unless a `fill` is given."""
    return element("text", escape(content, quote=False), x=x, y=y, **{"fill": GREY, **attributes})


def title(content: str) -> str:
    """Return the tooltip of the element that it is a child of."""
    return element("title", escape(content, quote=False))


def picture(width: float, height: float, body: Iterable[str], label: str) -> str:
    """Return the whole file; `label` is what a screen reader says."""
    inside = "\n".join(body)
    return element(
        "svg",
        f"\n{inside}\n",
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_text(width)} {_text(height)}",
        width=width,
        height=height,
        font_family=SANS,
        font_size=12,
        role="img",
        aria_label=label,
    ) + "\n"  # fmt: skip


def _text(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
