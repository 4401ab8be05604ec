"""A cluster file out of measured times: what the cost model counts, fitted by linear regression."""
