"""Quantised matrices on GPUs: as numbers in memory, and in products, where codes become numbers in registers."""
