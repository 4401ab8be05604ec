"""The whole training step of a plan, as one program."""
