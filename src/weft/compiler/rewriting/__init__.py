"""Changes of the graph that is planned: identities that save work, and the cut into segments for streams."""
