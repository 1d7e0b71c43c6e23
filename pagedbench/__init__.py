"""pagedbench: validate and benchmark paged-attention kernels.

Importing this package costs nothing: no torch, no pandas. The flow of data and the map of the code are in
CONTRIBUTING.md.
"""

from pagedbench.backends.declare import backend

__all__ = ["__version__", "backend"]
__version__ = "0.1.0"
