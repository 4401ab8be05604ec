"""Writes and reads certificates as JSON files."""

from __future__ import annotations

from pathlib import Path

import msgspec

from primepar.certify.certificate_format import PrimitiveCertificate, SequenceCertificate
from primepar.certify.program import ProgramCertificate
from primepar.errors import CertificateError
from primepar.files import write_text
from primepar.reading import read_json

Certificate = ProgramCertificate | PrimitiveCertificate | SequenceCertificate


def save_certificate(certificate: Certificate, path: Path) -> None:
    """Write a certificate as JSON; a file at `path` is replaced atomically."""
    write_text(path, msgspec.json.encode(certificate).decode() + "\n", CertificateError)


def load_certificate(path: Path) -> Certificate:
    """Read a certificate. Raises `CertificateError`, in one line, if the file holds none."""
    what = "a certificate that `primepar verify --certificate` wrote"
    return read_json(path, Certificate, what, CertificateError)  # type: ignore[arg-type]
