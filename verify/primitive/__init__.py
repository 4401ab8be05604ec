"""Proof of a primitive for all sides.

Read in this order. `primepar/certify/claims.py` states the claims. `slice_counts` finds the number
of slices and `witness` the expressions that claims need, both on small meshes (`claims_on_mesh`).
`z3_question` asks Z3 about a claim, over `z3_symbols` and `z3_terms`. `decide` combines
these. `refutation` and `smallest_mesh` search for the smallest wrong mesh, and `proof` writes the
report, with certificates. `equal_on_meshes` compares formulas of memory and traffic with what is
counted. `one_mesh` proves one mesh.
"""
