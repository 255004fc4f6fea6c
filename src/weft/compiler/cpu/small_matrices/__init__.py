"""Linear algebra of small real matrices in generated code: one matrix of a stack in each lane."""
