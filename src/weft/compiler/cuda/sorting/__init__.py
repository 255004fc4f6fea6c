"""Sorting, partitioning and searching on NVIDIA GPUs."""
