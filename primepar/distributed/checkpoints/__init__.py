"""Checkpoints: shards of every rank in safetensors files, and a manifest of them all."""
