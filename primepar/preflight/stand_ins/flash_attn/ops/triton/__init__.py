"""Operations that flash_attn has as kernels of Triton."""
