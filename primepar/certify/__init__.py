"""A small checker of certificates, without Z3 and without anything that made them.

Of a program (`program`, `flow`, `run`, `data`) and of a primitive or sequence for all sides: what is
claimed of it (`claims`), its certificate (`primitive`) and how cases are followed (`cases`). It imports the grammar of programs and the definition of a primitive, nothing else.
"""

from primepar.certify.file import Certificate, load_certificate, save_certificate
from primepar.certify.primitive import (
    PrimitiveCertificate,
    SequenceCertificate,
    certify_primitive,
    certify_sequence,
)
from primepar.certify.program import ProgramCertificate, certify_program

__all__ = [
    "Certificate",
    "PrimitiveCertificate",
    "ProgramCertificate",
    "SequenceCertificate",
    "certify_primitive",
    "certify_program",
    "certify_sequence",
    "load_certificate",
    "save_certificate",
]
