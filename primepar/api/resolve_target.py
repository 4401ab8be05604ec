"""What a TARGET on the command line names: primitive, sequence, method, program or plan."""

from __future__ import annotations

import re
from pathlib import Path

from primepar.errors import SequenceError, TargetError, nearest
from primepar.partition import METHODS, PRIMITIVES, parse_method, parse_sequence
from primepar.partition.primitive_file import load_primitive as load_primitive
from primepar.partition.primitive_file import primitive_of as primitive_of
from primepar.partition.registry import labelled
from primepar.plan.plan import Plan, is_plan, load_plan
from primepar.plan.presets import PRESETS, names_preset
from primepar.schedule import Primitive, Program, Sequence, load_program
from primepar.schedule.program_method import ProgramMethod
from primepar.schedule.sequence import Nesting

_TOKEN = re.compile(r"[A-Z][a-z]?\d*(x\d+)*$|\w+\d+[xX;+ ]")
"""What looks like a primitive of a sequence, maybe misspelt."""
Target = Primitive | Sequence | ProgramMethod | Program | Plan


def resolve(text: str) -> Target:
    """Find what `text` names: a registered name, `file.py:Class`, a `.json` file or `K,P2x2`.

    `case:NAME` is the program of a public case, `case:NAME:fixed` the fixed one.
    The name of a method can have sizes, `gpipe:stages=4`. A file whose `format` is that of plans is
    one, any other a program. Raises `TargetError`, `PrimitiveError`, `MethodError`, `ProgramError`
    or `PlanError`.
    """
    if text in PRIMITIVES:
        return PRIMITIVES[text]()
    if text.startswith("case:"):
        from primepar.preflight.cases import case_program

        return case_program(text)
    if text.endswith(".json"):
        path = Path(text)
        return load_plan(path) if is_plan(path) else load_program(path)
    if ".py" in text:
        return _of_file(text)
    if names_preset(text):
        raise TargetError(
            f"{text}: expected a model and a number of devices for a preset plan, got neither: "
            f"write {text} --model config.json --devices 4, to show it or to verify it"
        )
    method = parse_method(text)
    if method is not None:
        return method
    if Path(text).is_dir() and text:
        raise TargetError(
            f"{text}: expected a file, got a directory: write file.py:Class, or the name of a file "
            "in it that ends with .json"
        )
    try:
        return parse_sequence(text)
    except SequenceError as error:
        raise _unknown(text, error) from None


def _of_file(text: str) -> Primitive | Sequence:
    """The primitive of `file.py:Class`, or the sequence of `M2,file.py:Class2x2`."""
    try:
        return load_primitive(text)
    except TargetError:
        try:
            return parse_sequence(text)
        except (SequenceError, TargetError):
            pass
        raise


def _unknown(text: str, error: SequenceError) -> TargetError:
    """The error for a text that names nothing: what it is near to, or what is wrong with it."""
    module, _, name = re.sub(r"[:.]+", ":", text).rpartition(":")
    for stem, kind in ((module, f":{name}"), (text, "")):
        if stem and Path(f"{stem}.py").is_file():
            return TargetError(f"{text}: expected file.py:Class, got no .py: write {stem}.py{kind}")
    known = {known.lower(): known for known in (*PRIMITIVES, *METHODS, *PRESETS)}
    near = known.get(text.lower(), "") or (
        "" if ": write" in str(error) else nearest(text, known.values()).removeprefix(": write ")
    )
    if near:
        return TargetError(f"expected the name of a primitive, got {text!r}: write {near}")
    if any(_TOKEN.match(token.strip()) for token in text.split(",")):
        return TargetError(str(error))
    return TargetError(
        "expected the name of a primitive, file.py:Class, program.json, or a sequence like K,P2x2, "
        f"got {text!r}: primepar list prints the names"
    )


def without_lengths(text: str) -> Nesting | None:
    """The sequence for every length that `text` names, like `M,P`; None if it names another target.

    Its members are labels without lengths, registered names and `file.py:Class`. Raises what
    `load_primitive` does.
    """
    tokens, file = [token.strip() for token in text.split(",")], text.partition(":")[0]
    alone = len(tokens) == 1 and (text in PRIMITIVES or ".py" in text)
    if alone or tokens[-1].partition(":")[0] in PRESETS or ("," in file and Path(file).is_file()):
        return None
    if not all(".py" in token or labelled(token) for token in tokens):
        return None
    members = (labelled(token) or load_primitive(token) for token in tokens)
    return Nesting(tuple(members), tuple(tokens))
