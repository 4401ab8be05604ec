"""Proof of a primitive for all sides.

Read in this order. `primepar/certify/claims.py` states what is claimed. `slices` finds the number
of slices, `witness` the expressions that claims ask for, both on small meshes (`mesh`). `question`
asks Z3 about a claim, over `symbol`, `affine` and `terms`. `decide` joins these, `refute` and
`search` look for the smallest wrong mesh, and `proof` makes the report, with certificates. `side`
proves one mesh. Formulas of memory and traffic are in `verify/formulas`.
"""
