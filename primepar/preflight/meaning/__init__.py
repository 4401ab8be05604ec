"""What the data of a captured run means: which gradients are summed over which ranks, and how."""
