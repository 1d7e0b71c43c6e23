"""Walks cells through the flow in worker processes; the parent never touches CUDA."""
