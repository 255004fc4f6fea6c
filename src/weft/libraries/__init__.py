"""The addresses of BLAS and LAPACK routines, for machine code that calls them."""
