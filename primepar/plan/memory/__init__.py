"""Peak memory of every device in a training step of a plan, from movement and layouts."""
