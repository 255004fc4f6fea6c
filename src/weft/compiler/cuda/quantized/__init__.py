"""Quantised matrices on GPUs: decoded into memory, or in registers as a part of products."""
