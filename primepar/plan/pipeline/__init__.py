"""Pipeline, data and tensor parallelism combined: the paper's (p, d, m)."""
