"""The graph: immutable nodes, the handles that name them, and who is tracing at the moment."""
