"""Views of what the compiler does: drawings of graphs, explanations of plans, timelines of runs."""
