"""Fourier transforms on the CPU: generated stages, which process one row or several transforms side by side."""
