"""`primepar certify`: checks what `primepar verify --certificate` wrote, without Z3."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from primepar.api.resolve_target import Target
from primepar.commands.certificates import program_of
from primepar.commands.options import (
    BatchOption,
    DevicesOption,
    JsonOption,
    Making,
    ModelOption,
    PlanTargetArgument,
    PositionsOption,
    json_text,
)
from primepar.errors import CertificateError, ClaimError, one_line
from primepar.plan import Plan
from primepar.schedule import Primitive
from primepar.schedule.nesting import Nesting

if TYPE_CHECKING:
    from primepar.certify.certificate_format import PrimitiveCertificate, SequenceCertificate


class Checked(Struct, frozen=True):
    """What a certificate is about, and whether it holds."""

    certificate: str
    target: str
    holds: bool
    verdict: str
    """The verdict that is certified if it holds."""
    scope: str
    properties: tuple[str, ...]
    """What the verdict is about."""
    reason: str | None = None
    """What does not hold."""


def certify(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="CERTIFICATE",
            help="What `primepar verify --certificate` wrote.",
            show_default=False,
        ),
    ],
    target: PlanTargetArgument,
    model: ModelOption = None,
    devices: DevicesOption = None,
    batch: BatchOption = None,
    positions: PositionsOption = None,
    json: JsonOption = False,
) -> None:
    """Check the certificate of a proof or a refutation, without Z3 and without the prover.

    Ends with 0 if it holds, 1 if it does not, 2 if the file is no certificate of TARGET.
    """
    making = Making(model, devices, batch, positions)
    every = making.every_length(target)
    placed = every if isinstance(every, Nesting) else making.resolved(target, step=True)
    seen = _checked(file, target, placed, making)
    if json:
        typer.echo(json_text(seen), nl=False)
    elif seen.holds:
        typer.echo(f"{file}: holds: {target} is {seen.verdict} {seen.scope}")
        typer.echo(f"  {', '.join(seen.properties)}")
    else:
        typer.echo(f"{file}: does not hold: {one_line(seen.reason or '')}")
    raise typer.Exit(0 if seen.holds else 1)


def _checked(file: Path, target: str, placed: Target | Nesting, making: Making) -> Checked:
    from primepar.certify.certificate_file import load_certificate
    from primepar.certify.claims import PROPERTIES
    from primepar.certify.program import ProgramCertificate, certify_program

    given = load_certificate(file)
    reason = None
    if not isinstance(given, ProgramCertificate):
        properties: tuple[str, ...] = PROPERTIES
        verdict, scope = "proved", _every_side(placed)
        try:
            _check_all_sides(given, file, target, placed)
        except ClaimError as error:
            reason = str(error)
    elif isinstance(placed, Nesting):
        raise _other_target(file, target)
    else:
        step = making.step(placed).program if isinstance(placed, Plan) else None
        program = program_of(target, placed, step, given)
        verdict = "refuted" if given.refuted else "proved"
        scope = f"for side {given.side}" if given.side else "as given"
        scope += ", with buffered sends" * (given.transport.slots is None)
        properties = given.refuted or given.proved
        try:
            certify_program(given, program)
        except ClaimError as error:
            reason = str(error)
    return Checked(str(file), target, reason is None, verdict, scope, properties, reason)


def _check_all_sides(
    given: PrimitiveCertificate | SequenceCertificate,
    file: Path,
    target: str,
    placed: Target | Nesting,
) -> None:
    """Check the certificate of a primitive or of a sequence without lengths."""
    from primepar.certify.certificate_format import PrimitiveCertificate
    from primepar.certify.primitive import certify_primitive, certify_sequence

    if isinstance(given, PrimitiveCertificate) and isinstance(placed, Primitive):
        certify_primitive(given, placed)
    elif not isinstance(given, PrimitiveCertificate) and isinstance(placed, Nesting):
        certify_sequence(given, placed)
    else:
        raise _other_target(file, target)


def _other_target(file: Path, target: str) -> CertificateError:
    return CertificateError(
        f"{target}: expected the target that {file} is about, got a target of another kind"
    )


def _every_side(target: Target | Nesting) -> str:
    names = target.side_names if isinstance(target, Primitive | Nesting) else ()
    return f"for every {', '.join(names)} >= 1" if names else "for one device"
