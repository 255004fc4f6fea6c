"""Products in blocks, whose operands are packed to panels in which a kernel reads in order."""
