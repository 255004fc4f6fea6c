"""Products of matrices and of windows of arrays on the CPU, in generated code."""
