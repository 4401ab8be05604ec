"""Formulas of memory and traffic, proved for every side of a primitive that is proved correct.

Read in this order. Amounts are polynomials (`polynomial`), and formulas are evaluated on them
(`symbolic_amount`). `block_sets` defines which devices have which blocks, and counts them;
`cardinality` counts sets of (device, step, block). `partial_sums` decides how partial sums are
reduced. `traffic` counts what is sent, `liveness` and `memory` count live blocks, and `proof` asks
Z3.
"""
