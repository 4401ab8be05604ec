"""`primepar verify --certificate`: writes a certificate, or checks one that is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from primepar.api.target import COMMAND_LINE, AskedTarget, Target
from primepar.commands.options import Making, file_option
from primepar.errors import CertificateError, ClaimError
from primepar.plan import Plan
from primepar.schedule import Linear, Primitive, Program, lower
from primepar.schedule.sequence import Nesting

if TYPE_CHECKING:
    from primepar.certify.certificate_file import Certificate
    from primepar.certify.certificate_format import PrimitiveCertificate, SequenceCertificate
    from primepar.certify.program import ProgramCertificate
    from primepar.verify.report import Report

CertificateOption = Annotated[
    Path | None,
    file_option(
        "Write the certificate of the verdict; one that is there is checked, without Z3.",
        "--certificate",
        metavar="FILE.JSON",
    ),
]


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


def lowered(target: str, placed: Target, side: str | None) -> Program:
    """The program of a target that is no plan."""
    on = AskedTarget(target, placed, COMMAND_LINE).on_mesh(side)
    return on if isinstance(on, Program) else lower(on, Linear.smallest(on.grid))


def write_certificate(
    report: Report, placed: Primitive | Nesting | Program, output: Path,
    side: str | None, buffered: bool, timeout: float,
) -> None:  # fmt: skip
    """Write the certificate of a report; where it has none there is no file."""
    from primepar.certify.certificate_file import save_certificate

    try:
        made = _made(report, placed, side, buffered, timeout)
    except CertificateError as error:
        typer.echo(f"{report.target}: {error}: {output} is not written", err=True)
        return
    save_certificate(made, output)
    typer.echo(f"wrote {output}", err=True)


def _made(
    report: Report, placed: Primitive | Nesting | Program,
    side: str | None, buffered: bool, timeout: float,
) -> Certificate:  # fmt: skip
    """The certificate of a report; of a refuted primitive that of the smallest wrong mesh."""
    from primepar.schedule.transport import Transport
    from primepar.verify.certificate.program import certificate
    from primepar.verify.program import verify_program

    if report.verdict == "unknown":
        raise CertificateError("no certificate, as the verdict is unknown")
    if isinstance(placed, Program):
        return certificate(placed, report, Transport(None if buffered else 0), side)
    if report.verdict == "proved":
        if report.certificate is None:
            raise CertificateError("no certificate, as Z3 proved what none was found for")
        return report.certificate
    if isinstance(placed, Nesting):
        raise CertificateError(
            "no certificate, as a refutation has one on one mesh only: write lengths, "
            f"like {placed.of((2,) * len(placed.side_names))}, or certify what --minimal writes"
        )
    refuted = (result.details for result in report.properties if result.details is not None)
    wrong = next(refuted, None)
    sides = (wrong.sides if wrong else None) or {}
    side = ",".join(map(str, sides.values())) or None
    program = lowered(report.target, placed, side)
    verified = verify_program(program, report.target, timeout=timeout)
    return certificate(program, verified, side=side)


def program_of(
    target: str, placed: Target, step: Program | None, given: ProgramCertificate
) -> Program:
    """The program that a certificate of a target is about. Raises `CertificateError`."""
    if isinstance(placed, Plan):
        assert step is not None
        return step
    if not isinstance(placed, Primitive) and given.side is not None:
        raise CertificateError(
            f"{target}: expected a primitive, as the certificate is of one with --side "
            f"{given.side}, got another target"
        )
    return lowered(target, placed, given.side)


def check_certificate(file: Path, target: str, placed: Target | Nesting, making: Making) -> Checked:
    """Check a certificate that is there, without Z3 and without the prover.

    Raises `CertificateError` if the file is no certificate of the target.
    """
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
