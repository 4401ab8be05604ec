"""The search for the best plan of a model on a cluster."""
