"""`primepar certify`: checks what `primepar verify --certificate` wrote, without Z3."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct

from primepar.commands.certificates import program_of
from primepar.commands.options import (
    BatchOption,
    DepthOption,
    JsonOption,
    ModelOption,
    PlanTargetArgument,
    PositionsOption,
    RanksOption,
    json_text,
)
from primepar.commands.plan import Making
from primepar.errors import CertificateError, ClaimError
from primepar.plan import Plan
from primepar.schedule import Primitive
from primepar.targets import Target


class Checked(Struct, frozen=True):
    """What a certificate is about, and whether it holds."""

    certificate: str
    target: str
    holds: bool
    verdict: str
    """The verdict that is certified if it holds."""
    scope: str
    properties: tuple[str, ...]
    """What the verdict is about; of memory and traffic a certificate says nothing."""
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
    ranks: RanksOption = None,
    batch: BatchOption = None,
    depth: DepthOption = None,
    positions: PositionsOption = None,
    json: JsonOption = False,
) -> None:
    """Check the certificate of a proof or a refutation, without Z3 and without the prover.

    Ends with 0 if it holds, 1 if it does not, 2 if the file is no certificate.
    """
    making = Making(model, ranks, batch, depth, positions)
    placed = making.resolved(target, step=True)
    seen = _checked(file, target, placed, making)
    if json:
        typer.echo(json_text(seen), nl=False)
    elif seen.holds:
        typer.echo(f"{file}: holds: {target} is {seen.verdict} {seen.scope}")
        typer.echo(f"  {', '.join(seen.properties)}")
    else:
        typer.echo(f"{file}: does not hold: {seen.reason}")
    raise typer.Exit(0 if seen.holds else 1)


def _checked(file: Path, target: str, placed: Target, making: Making) -> Checked:
    from primepar.certify.file import load_certificate
    from primepar.certify.primitive import PROPERTIES, PrimitiveCertificate, certify_primitive
    from primepar.certify.program import certified, certify_program

    given = load_certificate(file)
    reason = None
    if isinstance(given, PrimitiveCertificate):
        if not isinstance(placed, Primitive):
            raise CertificateError(f"{target}: expected the primitive that {file} is about, "
                                   "got another target")  # fmt: skip
        verdict, scope, properties = "proved", _every_side(placed), PROPERTIES
        try:
            certify_primitive(given, placed)
        except ClaimError as error:
            reason = str(error)
    else:
        step = making.step(placed).program if isinstance(placed, Plan) else None
        program = program_of(target, placed, step, given)
        verdict = "refuted" if given.refuted else "proved"
        scope = f"for side {given.side}" if given.side else "as it stands"
        scope += ", with buffered sends" * given.buffered
        properties = certified(given, program)
        try:
            certify_program(given, program)
        except ClaimError as error:
            reason = str(error)
    return Checked(str(file), target, reason is None, verdict, scope, properties, reason)


def _every_side(primitive: Primitive) -> str:
    names = primitive.side_names
    return f"for every {', '.join(names)} >= 1" if names else "for one device"
