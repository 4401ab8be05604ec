"""The most that a device holds in a training step of a plan: derived from movement and layouts."""
