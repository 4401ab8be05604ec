"""What `primepar verify --certificate` writes, and the program that a certificate is about."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from primepar.api.resolve_target import Target
from primepar.commands.options import on_mesh
from primepar.errors import CertificateError, TargetError
from primepar.plan import Plan
from primepar.schedule import Linear, Primitive, Program, lower
from primepar.schedule.nesting import Nesting

if TYPE_CHECKING:
    from primepar.certify.certificate_file import Certificate
    from primepar.certify.program import ProgramCertificate
    from primepar.verify.report import Report

CertificateOption = Annotated[
    Path | None,
    typer.Option(
        "--certificate",
        metavar="OUT.JSON",
        help="Write the certificate of the verdict, which `primepar certify` checks without Z3.",
        show_default=False,
    ),
]


def lowered(target: str, placed: Target, side: str | None) -> Program:
    """The program of a target that is no plan."""
    on = on_mesh(target, placed, side)
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


def check_name(output: Path | None) -> None:
    """Raise `TargetError` unless a certificate can have this name."""
    if output is not None and output.suffix != ".json":
        raise TargetError(
            f"--certificate: expected a name that ends with .json (the certificate), got {output}"
        )


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
