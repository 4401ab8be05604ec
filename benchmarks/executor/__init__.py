"""CPU, wall time and memory of the executor next to DTensor, Megatron by hand, and a floor."""
