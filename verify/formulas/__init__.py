"""Formulas of memory and traffic, proved for every side once a primitive is proved to be right.

Read in this order: `polynomial` and `amount` are what is counted in, and what a formula is
evaluated on; `blocks` says where blocks are, and how many; `sets` counts sets of (device, step,
block); `sums` says what becomes of partial sums; `traffic` counts what is sent; `alive` and
`memory` count what is alive; `proof` asks Z3.
"""
