"""One record a cell, appended as it is made; baselines."""
