"""NVIDIA GPUs as a target: how blocks and threads do a kernel, and its PTX."""
