"""Prints the matrix of operations and transformations: ``python -m tests.ops``."""

from __future__ import annotations

from collections import Counter

from tests.ops.matrix import TRANSFORMATIONS, Matrix, holes_of, matrix_of
from tests.ops.table import NO_ROW, ROWS, SAME_FUNCTION

WORDS = {"yes": "holds", "part": "holds, but not in every row", "no": "a hole", ".": "makes no sense"}


def main() -> None:
    matrix = matrix_of(ROWS)
    width = max(map(len, matrix))
    print(" " * width, *TRANSFORMATIONS, sep="  ")
    for operation, line in matrix.items():
        cells = [str(cell).ljust(len(name)) for name, cell in line.items()]
        print("  ".join([operation.ljust(width), *cells]).rstrip())
    print("\nHoles, with the rows that have them:")
    for operation, transformation, reason, rows in holes_of(matrix):
        of_some = f" ({', '.join(rows)})" if rows != [operation] else ""
        print(f"  {operation}{of_some}: {transformation}: {reason}")
    print("\nOutside of the table:")
    for name, reason in NO_ROW.items():
        print(f"  {name}: {reason}")
    print(f"\n{len(matrix)} operations, {len(ROWS)} rows, {len(SAME_FUNCTION)} second names. {counted(matrix)}")


def counted(matrix: Matrix) -> str:
    """The numbers of cells of each kind."""
    counts = Counter([str(cell) for line in matrix.values() for cell in line.values()])
    found = [f"{counts[word]} {word} ({meaning})" for word, meaning in WORDS.items()]
    return f"Of {counts.total()} transformations of operations: {', '.join(found)}."


if __name__ == "__main__":
    main()
