"""Reads the XML of MSCCL: an algorithm of thread blocks, each with its steps.

    <algo name= proto= nchannels= ngpus= coll= inplace=>
      <gpu id= i_chunks= o_chunks= s_chunks=>
        <tb id= send= recv= chan=>                 peers of its connections; -1 for none
          <step s= type= srcbuf= srcoff= dstbuf= dstoff= cnt= depid= deps= hasdep=/>

    s    send src                                  r    receive into dst
    rcs  receive into dst, and send it             rrc  dst <- what is received + src
    rrs  send what is received + src               rrcs as rrc, and send it
    re   dst <- dst + src                          cpy  dst <- src          nop  nothing

A step starts when the one before it in its thread block has ended, and step `deps` of thread block
`depid` of the same GPU. Format: MSCCL and msccl-tools (Cowan et al., MSCCLang, ASPLOS 2023).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from msgspec import Struct

from primepar.errors import FormatError
from primepar.reading import read_bytes

RECEIVES = frozenset({"r", "rcs", "rrc", "rrs", "rrcs"})
SENDS = frozenset({"s", "rcs", "rrs", "rrcs"})
KINDS = RECEIVES | SENDS | {"re", "cpy", "nop"}

Location = tuple[str, int]
"""A buffer, `i`, `o` or `s`, and a chunk of it."""


class Step(Struct, frozen=True):
    """One step of a thread block; `where` names it in messages."""

    where: str
    kind: str
    source: Location
    destination: Location
    chunks: int
    after: tuple[int, int] | None
    """Thread block and step that it depends on."""


class ThreadBlock(Struct, frozen=True):
    """The steps of a thread block, and the peers that it sends to and receives from."""

    number: int
    sends_to: int
    receives_from: int
    channel: int
    steps: tuple[Step, ...]


class Gpu(Struct, frozen=True):
    """A GPU with the chunks of its input and output."""

    number: int
    inputs: int
    outputs: int
    blocks: tuple[ThreadBlock, ...]


class Algorithm(Struct, frozen=True):
    """An algorithm for one collective."""

    collective: str
    in_place: bool
    gpus: tuple[Gpu, ...]


def read_algorithm(path: Path) -> Algorithm:
    """Read an algorithm. Raises `FormatError` with the step, and what is expected there."""
    try:
        text = read_bytes(path).decode()
        if "<!" in text.replace("<!--", ""):
            raise FormatError(f"{path}: expected an MSCCL algorithm, got XML with a document type")
        root = ElementTree.fromstring(text)
    except (OSError, UnicodeDecodeError, ElementTree.ParseError) as error:
        raise FormatError(f"{path}: expected an MSCCL algorithm, got {error}") from None
    if root.tag != "algo":
        raise FormatError(f"{path}: expected an element <algo>, got <{root.tag}>")
    gpus = tuple(_gpu(str(path), element) for element in root.iter("gpu"))
    numbers = [gpu.number for gpu in gpus]
    if numbers != list(range(len(gpus))) or not gpus:
        raise FormatError(f"{path}: expected GPUs 0, 1, ... in order, got {numbers or 'none'}")
    in_place = root.attrib.get("inplace", "0") == "1"
    return Algorithm(root.attrib.get("coll", "custom").lower(), in_place, gpus)


def _gpu(path: str, element: ElementTree.Element) -> Gpu:
    number = _number(path, element.attrib, "id")
    where = f"{path}: gpu {number}"
    blocks = tuple(_block(where, block) for block in element.iter("tb"))
    sizes = {block.number: len(block.steps) for block in blocks}
    for step in (step for block in blocks for step in block.steps):
        if step.after is not None and step.after[1] >= sizes.get(step.after[0], 0):
            raise FormatError(
                f"{step.where}: expected depid and deps of a step of gpu {number}, got thread "
                f"block {step.after[0]}, step {step.after[1]}"
            )
    inputs = _number(where, element.attrib, "i_chunks")
    return Gpu(number, inputs, _number(where, element.attrib, "o_chunks"), blocks)


def _block(gpu: str, element: ElementTree.Element) -> ThreadBlock:
    number = _number(gpu, element.attrib, "id")
    where = f"{gpu}, tb {number}"
    send, recv, channel = (
        _number(where, element.attrib, name, -1) for name in ("send", "recv", "chan")
    )
    steps = tuple(_step(where, step) for step in element.iter("step"))
    for step in steps:
        lacks = "send" if step.kind in SENDS and send < 0 else ""
        lacks = lacks or ("recv" if step.kind in RECEIVES and recv < 0 else "")
        if lacks:
            raise FormatError(f"{step.where}: expected a {lacks} peer of {where}, got none")
    return ThreadBlock(number, send, recv, channel, steps)


def _step(block: str, element: ElementTree.Element) -> Step:
    given = element.attrib
    where = f"{block}, step {_number(block, given, 's')}"
    kind = given.get("type", "")
    if kind not in KINDS:
        raise FormatError(
            f"{where}: expected a type out of {', '.join(sorted(KINDS))}, got {kind!r}"
        )
    depends = _number(where, given, "depid", -1), _number(where, given, "deps", -1)
    return Step(
        where,
        kind,
        (given.get("srcbuf", "i")[:1], _number(where, given, "srcoff", 0)),
        (given.get("dstbuf", "o")[:1], _number(where, given, "dstoff", 0)),
        _number(where, given, "cnt", 1),
        depends if min(depends) >= 0 else None,
    )


def _number(where: str, given: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = given.get(name, "" if default is None else str(default))
    try:
        return int(text)
    except ValueError:
        raise FormatError(f"{where}: expected {name} to be an integer, got {text!r}") from None
