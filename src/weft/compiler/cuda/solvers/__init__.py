"""Linear algebra on NVIDIA GPUs."""
