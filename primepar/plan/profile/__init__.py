"""Cluster files from measured times, by linear regression on the counts of the cost model."""
