"""``WEFT_DUMP=graph,plan,kernel,llvm``: prints the stages of compilation to stderr, each as it is made."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from weft.compiler.program import Entry
from weft.graph.node import describe

STAGES = ("graph", "plan", "kernel", "llvm")


def stages_named(text: str) -> frozenset[str]:
    """The stages named in a list separated by commas. Unknown names give a warning."""
    names = dict.fromkeys([part.strip() for part in text.split(",") if part.strip()])
    unknown = [ascii(name[:40]) for name in names if name not in STAGES]
    if unknown:
        import logging  # takes 3 ms

        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        logging.getLogger("weft").warning(
            "WEFT_DUMP names no stage of the compiler: %s%s. It takes a list of stages, separated by commas, of: %s.",
            ", ".join(unknown[:5]),
            more,
            ", ".join(STAGES),
        )
    return frozenset(names).intersection(STAGES)


stages = stages_named(os.environ.get("WEFT_DUMP", ""))


def show(stage: str, text: str) -> None:
    """Write the text of a stage to stderr."""
    if sys.stderr is not None:
        sys.stderr.write(f"[weft {stage}]\n{text.rstrip()}\n")


def graph_text(entries: Sequence[Entry], outputs: Sequence[int]) -> str:
    """A program with a line for each entry; equal operations are a single entry."""
    lines = [f"{len(entries)} entries, results {' '.join([f'%{position}' for position in outputs])}"]
    for position, (primitive, *rest) in enumerate(entries):
        if primitive is None:
            number, shape, dtype, strides = rest
            line = f"input {number} strides {strides} : {describe(shape, dtype)}"
        elif primitive.is_constant:
            number, dtype = rest
            line = f"constant {number} : {describe((), dtype)}"
        else:
            params, shape, dtype, sources = rest
            named = [f"{name}={value}" for name, value in zip(primitive.parameters, params, strict=True)]
            words = [primitive.name, *[f"%{source}" for source in sources], *named]
            line = f"{' '.join(words)} : {describe(shape, dtype)}"
        lines.append(f"  %{position} = {line}")
    return "\n".join(lines)
