"""Builds the site in build/docs: runs every example, writes the pages, and calls Sphinx, which makes HTML of them.

The build needs no network, and the pages load nothing from the network. With ``--check``, Sphinx reads the pages and
follows all links in them, but makes no HTML, and no example runs: other tests run them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sphinx.cmd.build import main as build

from docs.site import reference
from docs.site.contents import DOCS, GROUPS, INSIDE, guide_pages

ROOT = DOCS.parent
PLACE = ROOT / "build" / "docs"
SOURCE, HTML = PLACE / "source", PLACE / "html"

# Elements that make a browser fetch something, as opposed to links that readers follow.
FETCHED = re.compile(r"<(?:link|script|img|iframe|source)\b[^>]*?(?:href|src|srcset)=[\"']?(?:https?:)?//[^>]*>")
IMPORTED = re.compile(r"(?:@import\s*|url\(\s*)[\"']?(?:https?:)?//[^)\"';]*")


STRICT = ("--fail-on-warning", "--keep-going", "--quiet", "--nitpicky", "-c", str(DOCS / "site"))


def main(arguments: Sequence[str]) -> int:
    """Print what was built, or what is wrong; the exit status is 1 if something is."""
    if "--check" in arguments:
        with tempfile.TemporaryDirectory() as folder:
            return check(Path(folder))
    if not run_examples():
        return 1
    shutil.rmtree(PLACE, ignore_errors=True)
    write_pages(SOURCE)
    failed = build([*STRICT, "--jobs", "auto", "-d", str(PLACE / "doctrees"), str(SOURCE), str(HTML)])
    fetched = list(fetches())
    for text in fetched:
        print(f"asks for something from the network: {text}", file=sys.stderr)
    if failed or fetched:
        return 1
    print(f"The documentation is in {(HTML / 'index.html').relative_to(ROOT)}.")
    return 0


def check(folder: Path) -> int:
    """Let Sphinx read all pages, which are written to a folder; the exit status is 1 if something is wrong."""
    write_pages(folder / "source")
    return build([*STRICT, "--builder", "dummy", str(folder / "source"), str(folder / "built")])


def run_examples() -> bool:
    """Run the examples of all docstrings, and those of each page in a process of its own. Returns whether all print
    what they show."""
    pages = [[], *[[str(DOCS / f"{name}.md")] for name in (*guide_pages(), *INSIDE)]]
    runs = [
        subprocess.run([sys.executable, "-W", "error", "-m", "docs.site.blocks", *page], cwd=ROOT) for page in pages
    ]
    return not any(run.returncode for run in runs)


def write_pages(source: Path) -> None:
    """Write the pages that Sphinx reads: those written by hand, and those of the reference."""
    for name in (*guide_pages(), *INSIDE):
        target = source / f"{name}.md"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(DOCS / f"{name}.md", target)
    folder = source / "reference"
    folder.mkdir()
    (folder / "index.rst").write_text(reference.first_page())
    for group in GROUPS:
        (folder / f"{group.page}.rst").write_text(reference.page(group))
    (source / "index.md").write_text(front_page())


def front_page() -> str:
    """The text of front.md, with the lists of all pages; the list of the reference has a page of its own."""
    reference_pages = ["reference/index", *[f"reference/{group.page}" for group in GROUPS]]
    lists = [
        _tree("Guide", guide_pages()),
        _tree("The inside", INSIDE),
        _tree("Reference", reference_pages, ":hidden:\n"),
    ]
    return "\n".join(["# Weft", "", (DOCS / "site" / "front.md").read_text(), *lists])


def _tree(title: str, pages: Sequence[str], options: str = "") -> str:
    lines = "\n".join(pages)
    return f"```{{toctree}}\n:caption: {title}\n:maxdepth: 1\n{options}\n{lines}\n```\n" if pages else ""


def fetches() -> list[str]:
    """The addresses from which the pages and styles would make a browser fetch something."""
    found = []
    for file in HTML.rglob("*"):
        pattern = {".html": FETCHED, ".css": IMPORTED}.get(file.suffix)
        if pattern is not None:
            found += [f"{file.relative_to(HTML)}: {text}" for text in pattern.findall(file.read_text())]
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
