"""Reads settings of a run from a TOML file, `--set section.key=value` and options, and writes them.

The keys, their types and their defaults are defined only by `Settings`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec

from primepar.distributed.training.settings import OPTIONS, Settings, key_of, meta_of, shown
from primepar.errors import ConfigError, TextError, nearest
from primepar.files import reason
from primepar.reading import LARGEST_TOML, read_bytes, toml_of

SECTIONS = (
    "parallelism", "training", "model", "optimizer", "averaging", "evaluation", "checkpoint",
    "weights", "output", "faults", "executor", "checks",
)  # fmt: skip
"""The sections of a file, in order."""
_KINDS: dict[type, str] = {int: "an integer", float: "a number", str: "a string",
                           bool: "true or false"}  # fmt: skip


def settings_of(file: Path | None, changes: Iterable[str], options: Mapping[str, Any]) -> Settings:
    """Return the settings of a file, changed by `section.key=value` words and by options.

    Raises `ConfigError` for an unknown key, a wrong type, a setting that is given twice on the
    command line, and for values that `Settings` refuses.
    """
    given = {} if file is None else read_settings(file)
    changed: dict[str, Any] = {}
    for word in changes:
        name, value = _change(word)
        if name in changed:
            raise ConfigError(f"--set {word}: expected {key_of(name)} once, got it twice: leave "
                              "one out")  # fmt: skip
        changed[name] = value
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
    return dict(
        _setting(path, section, key, value)
        for section, keys in sections.items()
        for key, value in _table(path, section, keys).items()
    )


def config_text(settings: Settings) -> str:
    """Return all settings as TOML with their meanings; settings without a value are comments."""
    lines: list[str] = []
    section = ""
    for name in sorted(Settings.__struct_fields__, key=_place):
        head, _, key = key_of(name).partition(".")
        if head != section:
            lines += ["", f"[{head}]"]
            section = head
        value, meta = getattr(settings, name), meta_of(name)
        default = f"; not set: {meta.extra['otherwise']}" if value is None else ""
        text = f"# {key} =" if value is None else f"{key} = {_toml(value)}"
        lines.append(f"{text}  # {meta.description}{default}")
    return "\n".join(lines[1:]) + "\n"


def arguments(settings: Settings) -> list[str]:
    """Return the command-line arguments that give these settings, without defaults."""
    words: list[str] = []
    for field in sorted(msgspec.structs.fields(Settings), key=lambda field: _place(field.name)):
        value = getattr(settings, field.name)
        if value == field.default:
            continue
        if field.name not in OPTIONS:
            words += ["--set", f"{key_of(field.name)}={_plain(value)}"]
        else:
            words += [shown(field.name)] + ([] if value is True else [str(value)])
    return words


def _place(name: str) -> int:
    """Return the place of a setting's section in a file."""
    return SECTIONS.index(key_of(name).partition(".")[0])


@cache
def _names() -> dict[str, dict[str, str]]:
    """Section -> key -> field of `Settings`."""
    sections: dict[str, dict[str, str]] = {}
    for name in sorted(Settings.__struct_fields__, key=_place):
        section, _, key = key_of(name).partition(".")
        sections.setdefault(section, {})[key] = name
    return sections


def _table(path: Path, section: str, keys: Any) -> dict[str, Any]:
    """Return the keys of a section. Raises `ConfigError` for an unknown section."""
    if not isinstance(keys, dict):
        homes = [key_of(keys[section]) for keys in _names().values() if section in keys]
        instead = f": write it below [{homes[0].partition('.')[0]}]" if homes else ""
        raise ConfigError(
            f"{path}: {section}: expected a section, like [training], got a setting outside of "
            f"all sections{instead}"
        )
    if section not in _names():
        raise ConfigError(
            f"{path}: expected sections out of {', '.join(_names())}, got [{section}]"
            f"{nearest(section, _names(), '[', ']')}"
        )
    return keys


def _setting(path: Path, section: str, key: str, value: Any) -> tuple[str, Any]:
    """Return a field of `Settings` and its value. Raises `ConfigError`."""
    keys = _names()[section]
    if key not in keys:
        raise ConfigError(
            f"{path}: {section}.{key}: expected a key out of {', '.join(keys)}, got {key!r}"
            f"{nearest(key, keys)}"
        )
    try:
        return keys[key], msgspec.convert(value, _type(keys[key]))
    except msgspec.ValidationError:
        raise ConfigError(
            f"{path}: {section}.{key}: expected {_kind(keys[key])}, got {_toml(value)}"
        ) from None


def _change(word: str) -> tuple[str, Any]:
    """Parse `section.key=value` to a field of `Settings` and its value. Raises `ConfigError`."""
    key, equals, text = word.partition("=")
    known = {key_of(name): name for name in Settings.__struct_fields__}
    if not equals:
        raise ConfigError(
            f"--set {word}: expected section.key=value, got no =: write it like optimizer.lr=0.01"
        )
    key, text = key.strip(), text.strip()
    if key not in known:
        raise ConfigError(
            f"--set {word}: expected a key like optimizer.lr, got {key!r}{_instead(key, text)}"
        )
    name = known[key]
    try:
        return name, msgspec.convert(_unquoted(text), _type(name), strict=False)
    except msgspec.ValidationError:
        raise ConfigError(f"--set {word}: expected {_kind(name)}, got {text!r}") from None


def _instead(key: str, text: str) -> str:
    """Return `: write ...` for an unknown key: a similar one of its section, or of all sections."""
    section, _, end = key.partition(".")
    if section in _names():
        keys = _names()[section]
        near = nearest(end, keys, f"{section}.", f"={text}")
        return near or f": write one of {', '.join(f'{section}.{end}' for end in keys)}"
    known = {key_of(name): name for name in Settings.__struct_fields__}
    same = [name for name in known if name.partition(".")[2] == key or known[name] == key]
    near = f": write {same[0]}={text}" if same else nearest(key, known, "", f"={text}")
    return near or ": primepar train --show-config lists them all"


def _type(name: str) -> Any:
    field = next(field for field in msgspec.structs.fields(Settings) if field.name == name)
    return field.type


def _kind(name: str) -> str:
    """Return the kind of values of a setting, in words."""
    kind = get_args(_type(name))[0]
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    kinds = [one for one in get_args(kind) or (kind,) if one is not type(None)]
    return _KINDS[kinds[0]]


def _unquoted(text: str) -> str:
    """Return a value without the quotes that it has in TOML."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _toml(value: Any) -> str:
    """Return a value as TOML; strings are escaped as in JSON, which TOML accepts."""
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    return "a table" if isinstance(value, dict) else str(value)
