"""Layers of flash_attn."""
