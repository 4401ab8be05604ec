"""Certificates as files."""

from __future__ import annotations

from pathlib import Path

import msgspec

from primepar.certify.certificate_format import PrimitiveCertificate, SequenceCertificate
from primepar.certify.program import ProgramCertificate
from primepar.errors import CertificateError
from primepar.files import read_bytes, write_text

Certificate = ProgramCertificate | PrimitiveCertificate | SequenceCertificate


def save_certificate(certificate: Certificate, path: Path) -> None:
    """Write a certificate, replacing an old one in one go."""
    write_text(path, msgspec.json.encode(certificate).decode() + "\n", CertificateError)


def load_certificate(path: Path) -> Certificate:
    """Read a certificate. Raises `CertificateError`, in one line, if a file is none."""
    try:
        found: Certificate = msgspec.json.decode(read_bytes(path), type=Certificate)
    except OSError as error:
        raise CertificateError(f"{path}: expected a certificate, got {error.strerror}") from None
    except RecursionError:
        raise CertificateError(
            f"{path}: expected a certificate, got JSON nested too deeply"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = " ".join(str(error).split())
        raise CertificateError(
            f"{path}: expected a certificate that `primepar verify --certificate` wrote, "
            f"got {message}"
        ) from None
    return found
