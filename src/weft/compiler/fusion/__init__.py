"""Which operations share a kernel, and the loop nest of each group."""
