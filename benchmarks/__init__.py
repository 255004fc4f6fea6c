"""Benchmarks of Weft and its peers, measured side by side in one run: `make bench`.

`tasks` lists what is measured, `peers/` says how each framework does it, `worker` is the process in which one peer
runs, `session` sends requests to the workers in turns, and `report` prints the results.
"""
