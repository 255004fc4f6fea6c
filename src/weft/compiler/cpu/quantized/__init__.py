"""Products with quantised matrices on the CPU: codes become numbers in registers, or in panels for the second cache."""
