"""From lazy nodes to values: plans are found or made, and run."""
