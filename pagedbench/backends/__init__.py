"""One file a library: how to call it, what it supports, and why not."""
