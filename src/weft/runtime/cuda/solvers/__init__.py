"""Linear algebra by NVIDIA's cuSOLVER and cuBLAS."""
