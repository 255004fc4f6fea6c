"""The graph: immutable nodes, the handles that name them, and the transformations that are tracing at the moment."""
