"""What cuDNN computes on NVIDIA's cards, instead of what operations expand to."""
