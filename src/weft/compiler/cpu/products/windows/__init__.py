"""Products of operands whose rows, columns or terms go over several axes in memory, such as windows of an array."""
