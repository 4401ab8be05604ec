"""Writes certificates of programs: the order that the search found, and what the judge decided."""

from __future__ import annotations

from primepar.certify.judge import Judge
from primepar.certify.program import ProgramCertificate, certify_program, digest
from primepar.errors import CertificateError, ClaimError
from primepar.schedule.program import Program
from primepar.schedule.transport import RENDEZVOUS, Transport
from primepar.schedule.waits import levels
from primepar.verify.report import Report


def certificate(
    program: Program,
    report: Report,
    transport: Transport = RENDEZVOUS,
    side: str | None = None,
) -> ProgramCertificate:
    """The certificate of a program's report under a transport.

    Raises `CertificateError` if a property is unknown, or if the checker refuses the certificate.
    """
    if report.verdict == "unknown":
        raise CertificateError("no certificate, as the verdict is unknown")
    refuted = tuple(result.name for result in report.properties if result.verdict == "refuted")
    given = ProgramCertificate(
        format="primepar-certificate",
        version=2,
        side=side,
        transport=transport,
        program=digest(program),
        # Also after `--solver z3`: every order proves the same, and this one is there at once.
        levels=tuple(levels(Judge(program, transport).graph)),
        proved=() if refuted else tuple(result.name for result in report.properties),
        refuted=refuted,
    )
    try:
        # By the checker that its reader will run: what that refuses is never written.
        certify_program(given, program)
    except ClaimError as error:
        raise CertificateError(f"no certificate, as its checker asks more: {error}") from None
    return given
