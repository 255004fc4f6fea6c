"""Products of stacks of small matrices, of which vectors hold elements of several rows or matrices."""
