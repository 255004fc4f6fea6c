"""Routines from well-kept libraries, as addresses that machine code can call."""
