"""Reads settings of a run from a TOML file, `--set section.key=value` and options, and writes them.

The keys, their types and their defaults are those of the table `Settings`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec

from primepar.distributed.training.settings import OPTIONS, Settings, key_of, meta_of, shown, types
from primepar.errors import ConfigError, TextError, nearest
from primepar.files import reason
from primepar.reading import LARGEST_TOML, read_bytes, toml_of

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
    given = {}
    for section, table in sections.items():
        for key, value in _table(path, section, table).items():
            keys, text = _names()[section], _toml(value)
            if key not in keys:
                raise ConfigError(
                    f"{path}: {section}.{key}: expected a key out of {', '.join(keys)}, got "
                    f"{key!r}{nearest(key, keys)}"
                )
            given[keys[key]] = _of_type(f"{path}: {section}.{key}", keys[key], value, text)
    return given


def _table(path: Path, section: str, keys: Any) -> dict[str, Any]:
    """Return the keys of a section. Raises `ConfigError` for an unknown section."""
    if not isinstance(keys, dict):
        homes = [home for home, known in _names().items() if section in known]
        instead = f": write it below [{homes[0]}]" if homes else ""
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


def _change(word: str) -> tuple[str, Any]:
    """Parse `section.key=value` to a field of `Settings` and its value. Raises `ConfigError`."""
    key, equals, text = word.partition("=")
    if not equals:
        raise ConfigError(
            f"--set {word}: expected section.key=value, got no =: write it like optimizer.lr=0.01"
        )
    key, text = key.strip(), text.strip()
    section, _, end = key.partition(".")
    name = _names().get(section, {}).get(end)
    if name is None:
        raise ConfigError(
            f"--set {word}: expected a key like optimizer.lr, got {key!r}{_instead(key, text)}"
        )
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    value = text[1:-1] if quoted else text
    return name, _of_type(f"--set {word}", name, value, repr(text), strict=False)


def _instead(key: str, text: str) -> str:
    """Return `: write ...` for an unknown key: a similar one of its section, or of all sections."""
    section, _, end = key.partition(".")
    if section in _names():
        keys = _names()[section]
        near = nearest(end, keys, f"{section}.", f"={text}")
        return near or f": write one of {', '.join(f'{section}.{end}' for end in keys)}"
    known = {key_of(name): name for name in types()}
    same = [name for name in known if name.partition(".")[2] == key or known[name] == key]
    near = f": write {same[0]}={text}" if same else nearest(key, known, "", f"={text}")
    return near or ": primepar train --show-config lists them all"


def _of_type(where: str, name: str, value: Any, text: str, strict: bool = True) -> Any:
    """Return a value in the type of a setting. Raises `ConfigError`, which shows the `text`."""
    try:
        return msgspec.convert(value, types()[name], strict=strict)
    except msgspec.ValidationError:
        kind = get_args(types()[name])[0]
        first = next(one for one in get_args(kind) or (kind,) if one is not type(None))
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        expected = f"one of {', '.join(choices)}" if choices else _KINDS[first]
        raise ConfigError(f"{where}: expected {expected}, got {text}") from None


def config_text(settings: Settings) -> str:
    """Return all settings as TOML with their meanings; settings without a value are comments."""
    lines: list[str] = []
    for section, keys in _names().items():
        lines += ["", f"[{section}]"]
        for key, name in keys.items():
            value, meta = getattr(settings, name), meta_of(name)
            default = f"; not set: {meta.extra['otherwise']}" if value is None else ""
            text = f"# {key} =" if value is None else f"{key} = {_toml(value)}"
            lines.append(f"{text}  # {meta.description}{default}")
    return "\n".join(lines[1:]) + "\n"


def arguments(settings: Settings) -> list[str]:
    """Return the command-line arguments that give these settings, without defaults."""
    words: list[str] = []
    for field in msgspec.structs.fields(Settings):
        value = getattr(settings, field.name)
        if value == field.default:
            continue
        if field.name not in OPTIONS:
            plain = str(value).lower() if isinstance(value, bool) else value
            words += ["--set", f"{key_of(field.name)}={plain}"]
        else:
            words += [shown(field.name)] + ([] if value is True else [str(value)])
    return words


@cache
def _names() -> dict[str, dict[str, str]]:
    """Section -> key -> field of `Settings`, in the order of the table."""
    sections: dict[str, dict[str, str]] = {}
    for name in types():
        section, _, key = key_of(name).partition(".")
        sections.setdefault(section, {})[key] = name
    return sections


def _toml(value: Any) -> str:
    """Return a value as TOML; strings are escaped as in JSON, which TOML accepts."""
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    return "a table" if isinstance(value, dict) else str(value)
