"""Devices, streams, memory, threads: what machine code runs on. Nothing here knows about graphs."""
