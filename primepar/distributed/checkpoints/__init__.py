"""Checkpoints by torch.distributed.checkpoint: shards of every rank, and a manifest of them all."""
