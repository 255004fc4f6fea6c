"""Sorting, selecting and searching on the CPU, in generated code."""
