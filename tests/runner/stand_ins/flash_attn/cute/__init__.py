"""FlashAttention-4."""
