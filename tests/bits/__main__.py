"""Compares the bits of the results of programs with the digests on file: ``python -m tests.bits [name ...]``; without
names, of all programs.

``--part 2/8`` compares the second, tenth, ... program. ``--write`` replaces the digests on file by those of this
machine, as is right when a program is new, or when its results change on purpose.
"""

from __future__ import annotations

import sys

from tests.bits.programs import DIGESTS, PROGRAMS, digest_of, digests_on_file


def main(arguments: list[str]) -> int:
    if arguments == ["--write"]:
        DIGESTS.write_text("".join([f"{digest_of(name)} {name}\n" for name in sorted(PROGRAMS)]))
        return 0
    names = arguments or sorted(PROGRAMS)
    if arguments[:1] == ["--part"]:
        number, parts = map(int, arguments[1].split("/"))
        names = sorted(PROGRAMS)[number - 1 :: parts]
    digests, differing = digests_on_file(), 0
    for name in names:
        if digest_of(name) != digests.get(name):
            differing += 1
            print(f"other bits: {name}", flush=True)
    print(f"{len(names)} programs, {differing} with other bits")
    return differing > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
