"""Products of a few rows with a matrix that is read where it lies."""
