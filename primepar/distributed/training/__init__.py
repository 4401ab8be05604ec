"""A training run: settings, data, the trainer, checkpoints, logs, and how processes start."""
