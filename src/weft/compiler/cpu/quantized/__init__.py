"""Products with quantised matrices on the CPU: codes are decoded in registers, or into panels that the caches hold."""
