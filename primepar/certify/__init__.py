"""A small checker of certificates, without Z3 and without anything that made them.

Of a program (`program`, `flow`, `run`, `data`) and of a primitive for all sides (`primitive`,
`cases`). It imports the grammar of programs and the definition of a primitive, nothing else.
"""

from primepar.certify.file import Certificate, load_certificate, save_certificate
from primepar.certify.primitive import PrimitiveCertificate, certify_primitive
from primepar.certify.program import ProgramCertificate, certify_program

__all__ = [
    "Certificate",
    "PrimitiveCertificate",
    "ProgramCertificate",
    "certify_primitive",
    "certify_program",
    "load_certificate",
    "save_certificate",
]
