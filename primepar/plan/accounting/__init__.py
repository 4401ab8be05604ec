"""What a training step of a plan sends and holds, counted in the events of its program."""
