"""Programs that run once on a card: ``python -m tests.gpu.sample [--part 1/8]``.

`make sanitize-gpu` runs them with NVIDIA's compute-sanitizer, which checks each access to memory and is slow.
"""

from __future__ import annotations

import argparse
import sys

import weft.core as mx
from tests.gpu.card import missing_card
from tests.ops.row import flat, to_array
from tests.ops.table import ROWS

SEED = 20260101


def part(text: str) -> tuple[int, int]:
    """The number of a part and the number of parts: ``1/8`` is the first of eight."""
    number, count = map(int, text.split("/"))
    if not 1 <= number <= count:
        raise argparse.ArgumentTypeError(f"{text} is no part")
    return number - 1, count


def main() -> int:
    """Run each row of a part of the table of operations once, in its first dtype."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.sample", description=__doc__)
    parser.add_argument("--part", type=part, default=(0, 8), help="1/8: the first of eight parts of the table")
    first, count = parser.parse_args().part
    reason = missing_card()
    if reason:
        print(reason)
        return 2
    rows = [row for row in ROWS if row.dtypes][first::count]
    with mx.stream(mx.gpu):
        for row in rows:
            arguments = [to_array(x) for x in row.sample(SEED, row.dtypes[0])]
            mx.eval(flat(row.function(mx, *arguments)))
            print(row.id, flush=True)
    print(f"{len(rows)} operations ran")
    return 0


if __name__ == "__main__":
    sys.exit(main())
