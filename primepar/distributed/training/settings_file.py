"""Reads settings of a run from a TOML file, `--set section.key=value` and options, and writes them.

The keys, their types and their defaults are those of the table `Settings`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from primepar.distributed.training.settings import Settings, key_of, meta_of, of_type, shown, types
from primepar.errors import ConfigError, TextError, nearest
from primepar.files import reason
from primepar.reading import LARGEST_TOML, read_bytes, toml_of


def settings_of(file: Path | None, changes: Iterable[str], options: Mapping[str, Any]) -> Settings:
    """Return the settings of a file, changed by `section.key=value` words and by options.

    Raises `ConfigError` for an unknown key, a wrong type, a setting that is given twice on the
    command line, and for values that `Settings` refuses.
    """
    given = {} if file is None else read_settings(file)
    changed: dict[str, Any] = {}
    for word in changes:
        key, equals, text = (part.strip() for part in word.partition("="))
        if not equals:
            raise ConfigError(
                f"--set {word}: expected section.key=value, got no =: write it like "
                "optimizer.lr=0.01"
            )
        name = _name(f"--set {word}", key, text)
        if name in changed:
            raise ConfigError(f"--set {word}: expected {key} once, got it twice: leave one out")
        quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
        value = text[1:-1] if quoted else text
        changed[name] = of_type(f"--set {word}", name, value, repr(text), strict=False)
    chosen = {name: value for name, value in options.items() if value is not None}
    for name in changed.keys() & chosen.keys():
        raise ConfigError(
            f"--set {key_of(name)}: expected one value, got {shown(name)} too: leave one "
            "of the two out"
        )
    return Settings(**{**given, **changed, **chosen})


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings of a TOML file, by field of `Settings`. Raises `ConfigError`."""
    try:
        sections = toml_of(read_bytes(path, LARGEST_TOML))
    except OSError as error:
        raise ConfigError(
            f"--config {path}: expected a TOML file of settings, got {reason(error)}: write one "
            "with primepar train --show-config > run.toml"
        ) from None
    except TextError as error:
        raise ConfigError(f"{path}: {error}") from None
    given = {}
    for section, table in sections.items():
        keys = table.items() if isinstance(table, dict) else [("", table)]
        for end, value in keys:
            key, text = f"{section}.{end}" if end else section, _toml(value)
            name = _name(str(path), key, text)
            given[name] = of_type(f"{path}: {key}", name, value, text)
    return given


def _name(where: str, key: str, text: str) -> str:
    """Return the field of `Settings` of `section.key`.

    Raises `ConfigError` for an unknown one, with a similar one of its section, or of all.
    """
    names = {key_of(name): name for name in types()}
    if key in names:
        return names[key]
    section, _, end = key.partition(".")
    inside = [known for known in names if known.startswith(f"{section}.")]
    if inside:
        ends = [known.partition(".")[2] for known in inside]
        near = nearest(end, ends, f"{section}.", f"={text}")
        near = near or f": write one of {', '.join(inside)}"
    else:
        same = [one for one in names if key in (one.partition(".")[2], names[one])]
        near = f": write {same[0]}={text}" if same else nearest(key, names, "", f"={text}")
        near = near or ": primepar train --show-config lists them all"
    raise ConfigError(f"{where}: expected a key like optimizer.lr, got {key!r}{near}")


def config_text(settings: Settings) -> str:
    """Return all settings as TOML with their meanings; settings without a value are comments."""
    lines: list[str] = []
    before = ""
    for name in types():
        section, _, key = key_of(name).partition(".")
        lines += ["", f"[{section}]"] * (section != before)
        before, value, meta = section, getattr(settings, name), meta_of(name)
        default = f"; not set: {meta.extra['otherwise']}" if value is None else ""
        text = f"# {key} =" if value is None else f"{key} = {_toml(value)}"
        lines.append(f"{text}  # {meta.description}{default}")
    return "\n".join(lines[1:]) + "\n"


def _toml(value: Any) -> str:
    """Return a value as TOML; strings are escaped as in JSON, which TOML accepts."""
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    return "a table" if isinstance(value, dict) else str(value)
