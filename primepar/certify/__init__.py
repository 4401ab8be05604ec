"""A small checker of certificates, without Z3 and without anything that made them.

Of a program (`program`, `flow`, `run`, `data`) and of a primitive for all sides (`primitive`,
`cases`). It imports the grammar of programs and the definition of a primitive, nothing else.
"""
