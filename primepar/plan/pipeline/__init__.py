"""Pipeline stages by data-parallel replicas by tensor parallelism: the paper's (p, d, m)."""
