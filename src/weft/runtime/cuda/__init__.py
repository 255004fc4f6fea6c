"""NVIDIA GPUs: the driver, device memory, and the engine of a card."""
