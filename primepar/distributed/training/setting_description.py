"""How a setting of a run is described where it is defined."""

from __future__ import annotations

from msgspec import Meta


def described(key: str, meaning: str, otherwise: str = "") -> Meta:
    """Describe a setting: its key in a settings file, its meaning, and its default for None."""
    return Meta(description=meaning, extra={"key": key, "otherwise": otherwise})
