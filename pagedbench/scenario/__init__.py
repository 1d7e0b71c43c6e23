"""The scenario language: what is put before a kernel. No torch."""
