"""A small checker of certificates. It imports neither Z3 nor the prover that wrote them.

Of a program: the `judge`, which follows it by `run` and `contents`, and its certificate, `program`.
Of a primitive or sequence for all sides: the claims (`claims`), how their cases are followed
(`cases`), and the certificate (`primitive`). It imports the grammar of programs and the definition
of a primitive, nothing else.
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
