"""Fourier transforms on the CPU: generated stages, one after the other, on rows or on 16 transforms at once."""
