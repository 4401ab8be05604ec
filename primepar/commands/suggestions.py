"""What to write instead of a command, an option or an argument that there is not."""

from __future__ import annotations

import re
from typing import Any

from primepar.errors import nearest
from primepar.partition.registry import labelled

COMMANDS = {
    "prove": "verify", "test": "check", "run": "train", "emulate": "check", "draw": "show",
    "print": "show", "explore": "search", "measure": "profile",
    "version": "--version", "redundancy": "plan MODEL --objective redundancy",
    "price": "plan PLAN, with the same options",
    "pipeline": "plan MODEL --objective splits, with the same options",
    "certify": "verify TARGET --certificate FILE",
    "tokenize": "train --data TEXT --set training.tokenizer=tokenizer.json, which makes the tokens",
}  # fmt: skip
"""Other words for commands."""
OPTIONS = {
    "show": {"--ranks": "--devices", "--depth": "the depth into the name, like tesseract:2"},
    "plan": {
        "--ranks": "--devices", "--profile": "primepar profile -o cluster.toml",
        "--pipeline": "--pp STAGES", "--pareto": "--memory BYTES for each memory",
        "--row": "--pp STAGES --dp REPLICAS --tp DEVICES, which name the split",
        "--alpha": "--memory BYTES, the bytes of a device",
        "--schedule": "nothing instead, as the faster schedule is chosen",
        "--bucket": "nothing instead, as sums run during backward",
        "--solver": "--objective redundancy", "--timeout": "--objective redundancy",
    },
    "train": {
        "--devices": "--ranks", "--gpus": "--ranks", "--np": "--ranks", "-n": "--ranks",
        "-np": "--ranks", "--processes": "--ranks", "--sequence": "--plan", "--epochs": "--steps",
        "--no-verify": "--set checks.verify=false",
    },
    "profile": {"--devices": "--ranks", "-n": "--ranks"},
}  # fmt: skip
"""Command -> another word for an option, or one that it had -> what to write."""
for command in ("check", "verify", "simulate"):
    OPTIONS[command] = OPTIONS["show"]


def command_instead(name: str, known: list[str], path: str) -> str:
    """What to write for a command that there is not."""
    if name.lower() in COMMANDS:
        return f"write {path} {COMMANDS[name.lower()]}"
    near = nearest(name, known, f"{path} ", cutoff=0.65).removeprefix(": ")
    return near or f"{path} --help describes them"


def option_instead(option: str, command: Any, path: str) -> str:
    """What to write for an option that a command has not."""
    name = path.rpartition(" ")[2]
    if option in OPTIONS.get(name, {}):
        return f"write {OPTIONS[name][option]}"
    if name == "train" and (key := _setting(option)):
        return f"write --set {key}=VALUE"
    known = [opt for param in command.params for opt in param.opts if opt.startswith("--")]
    if not option.startswith("--"):
        first = [opt for opt in known if opt[2] == option[1]]
        return f"write {first[0] if first else '--help'}"
    longer = [opt for opt in known if opt.startswith(option)]
    if longer:
        return f"write {longer[0]}"
    near = nearest(option[2:], [opt[2:] for opt in known], "--").removeprefix(": ")
    return near or f"{path} --help lists them"


def argument_instead(word: str, given: list[str], command: Any, path: str) -> str:
    """What to write for one argument too many, after those that were given."""
    options = {opt for param in command.params for opt in param.opts}
    before = given[given.index(word) - 1] if word in given[1:] else ""
    if before.endswith(".py") and word.isidentifier():
        return f"write {before}:{word}"
    if before and labelled(re.sub(r"\d.*", "", before)) and labelled(re.sub(r"\d.*", "", word)):
        return f"write {before},{word}"
    if word.endswith(".toml") and "--config" in options:
        return f"write --config {word}"
    if word.endswith(".json") and path.endswith("train"):
        return f"write --plan {word}"
    if word.isdigit() and "--side" in options:
        return f"write --side {word}"
    return "leave it out"


def _setting(option: str) -> str:
    """Key of the setting of a run that an option would be named after, if there is one."""
    from primepar.distributed.training.settings import Settings, key_of

    keys = [key_of(name) for name in Settings.__struct_fields__]
    name = option.lstrip("-").replace("-", "_")
    if name in Settings.__struct_fields__:
        return key_of(name)
    return next((key for key in keys if key.endswith(f".{name}")), "")
