"""Operations that cuDNN computes on NVIDIA's cards, in place of what they expand to."""
