"""Holds the packages against their floor plan: few files side by side, few arrows between them.

An arrow is an import of one module by another in the same folder. Many of them mean that the folder
is a drawer, whose files can only be understood together. Imports between folders are what the layer
contracts hold (`[tool.importlinter]` in pyproject.toml). Prints a table; exits 1 when a folder has
more files, or a package more arrows, than its bound.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

FILES_MAX = 15
FILES_FREE = {"streamlog/v1", "streamlog/kafka/messages", "streamlog/cli/commands"}
"""Generated code, twice; one file for each command."""
ARROWS_MAX = {"metadata": 60, "engine": 30, "log": 47}
"""By package, its sub-packages included. 9 of log's are the cleaner's, 3 tiering's."""
ROOTS = {"streamlog": "streamlog", "kvstore": "streamlog.kvstore", "server": "streamlog.server"}
"""Folders at the top, and the package that each is imported as."""


def modules(top: Path) -> dict[str, Path]:
    """Every module of the product by its dotted name."""
    found = {}
    for folder, package in ROOTS.items():
        for path in sorted((top / folder).rglob("*.py")):
            parts = path.relative_to(top / folder).with_suffix("").parts
            if parts[:1] in (("kvstore",), ("server",)) and folder == "streamlog":
                continue  # A link to the folder at the top.
            name = ".".join((package, *(part for part in parts if part != "__init__")))
            found[name] = path
    return found


def imported(path: Path) -> Iterator[str]:
    """The dotted names that a file imports, also within functions; a name may be an attribute."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def arrows(every: dict[str, Path]) -> set[tuple[str, str]]:
    """Pairs of modules in one folder of which the first imports the second."""
    pairs = set()
    for name, path in every.items():
        if path.name == "__init__.py":
            continue
        for target in imported(path):
            module = target if target in every else target.rpartition(".")[0]
            known = every.get(module)
            if known is None or module == name or known.name == "__init__.py":
                continue
            if known.parent == path.parent:
                pairs.add((name, module))
    return pairs


def main() -> int:
    top = Path(__file__).resolve().parent.parent
    every = modules(top)
    files = Counter(
        str(path.parent.relative_to(top)) for path in every.values() if path.name != "__init__.py"
    )
    count = Counter(first.split(".")[1] for first, _ in arrows(every))
    wrong = [
        f"{folder} holds {number} files side by side, {FILES_MAX} at most: give some a folder"
        for folder, number in sorted(files.items())
        if number > FILES_MAX and folder not in FILES_FREE
    ]
    print(f"{'package':<14}{'arrows':>7}{'at most':>9}")
    for package, number in sorted(count.items()):
        bound = ARROWS_MAX.get(package)
        print(f"{package:<14}{number:>7}{bound if bound is not None else '':>9}")
        if bound is not None and number > bound:
            wrong.append(f"{number} arrows between siblings in {package}, {bound} at most")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
