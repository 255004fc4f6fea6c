"""NVIDIA's library for neural networks: convolutions and attention on a card."""
