"""Machine code from kernels: LLVM IR text is written here and nowhere else."""
