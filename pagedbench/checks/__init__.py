"""Is it right? One file a check."""
