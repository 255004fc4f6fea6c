"""Benchmarks of Weft beside its peers, measured side by side in one run: `make bench`.

`tasks` names what is measured, `peers/` says how each framework does it, `worker` is the process in
which one peer runs, `session` asks the workers in turns, `report` prints what came out.
"""
