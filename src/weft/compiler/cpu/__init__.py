"""The CPU as a target: how kernels are scheduled on its cores and vectors, and which machine code they become."""
