"""Operations of flash_attn."""
