"""Seeing what the compiler does: graphs as pictures, plans explained, timelines of what ran."""
