"""FlashAttention."""
