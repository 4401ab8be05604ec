"""A small checker of certificates, without Z3 and without anything that made them.

Of a program (`program`, `flow`, `run`, `data`); of a primitive or sequence for all sides what is
claimed (`claims`), how cases are followed (`cases`), and its certificate (`primitive`). It imports
the grammar of programs and the definition of a primitive, nothing else.
"""

from primepar.certify.certificate_file import Certificate, load_certificate, save_certificate
from primepar.certify.certificate_format import PrimitiveCertificate, SequenceCertificate
from primepar.certify.primitive import certify_primitive, certify_sequence
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
