"""Search for primitives: maps from (device, step) to (M, N, K), each proved for every side.

Read in this order. `affine` has the maps as whole numbers, and `covering` tries them one by one.
`symmetry` finds which are one class. `homes` makes training steps of those whose tensors return
home, `aligned` of those whose tensors stay where a phase leaves them. On one axis and on
three `boxes` cuts one dim along each axis, and `rings` has layers of planes. `measures` counts what
a class costs. `run` does it all, proves what is left, and names what is known.
"""
