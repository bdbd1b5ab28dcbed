"""Shapes that the product keeps: folders that say what they are, short functions, few arguments.

How many files a folder holds, and how its files import each other, is `.ci/floor_plan.py`'s.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ("streamlog/v1/", "streamlog/kafka/messages/", "streamlog/kafka/records/")
LINES_MAX = 80
ARGUMENTS_MAX = 8
LONG_FUNCTIONS = {"streamlog/metadata/metrics.py: __init__"}
"""It declares metrics, and does nothing else."""
LONG_CONSTRUCTORS = {
    "streamlog/client/consume/consumer.py: Consumer",
    "streamlog/client/produce/producer.py: Producer",
    "streamlog/log/topics/log_cache.py: LogCache",
    "streamlog/wal/pool.py: FilePool",
}
"""Of the clients, arguments are the settings. The last two have nine."""
IMPORTS = re.compile(r"\bimports?\b", re.I)
CALLERS = re.compile(
    r"\b(used|called|loaded|run|composed|owns|asks?|joins|uses|stand on|call)\b", re.I
)


@cache
def modules() -> dict[str, ast.Module]:
    """By path from the top; what is generated is left out."""
    return {
        name: ast.parse(path.read_bytes())
        for folder in ("streamlog", "kvstore", "server")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not (name := str(path.relative_to(ROOT))).startswith(GENERATED)
    }


def long_functions(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if (node.end_lineno or 0) - node.lineno + 1 > LINES_MAX:
            yield node.name


def long_constructors(tree: ast.AST) -> Iterator[str]:
    """Classes by name. Dataclasses are values or settings: their fields are not counted."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                every = method.args
                count = len([*every.posonlyargs, *every.args, *every.kwonlyargs]) - 1
                if count > ARGUMENTS_MAX:
                    yield node.name


def is_told(tree: ast.Module) -> bool:
    """The docstring says what the folder may import, and who calls it."""
    text = ast.get_docstring(tree) or ""
    return bool(IMPORTS.search(text) and CALLERS.search(text))


def test_a_folder_says_what_it_is_what_it_imports_and_who_calls_it() -> None:
    silent = {
        str(Path(name).parent)
        for name, tree in modules().items()
        if name.endswith("/__init__.py") and not is_told(tree)
    }
    silent.discard("streamlog")  # It is what users import.
    assert not silent


def test_no_function_is_longer_than_a_screen_or_two() -> None:
    long = {f"{path}: {name}" for path, tree in modules().items() for name in long_functions(tree)}
    assert long == LONG_FUNCTIONS


def test_a_constructor_takes_few_arguments() -> None:
    long = {
        f"{path}: {name}" for path, tree in modules().items() for name in long_constructors(tree)
    }
    assert long == LONG_CONSTRUCTORS


def test_what_is_long_or_silent_is_found() -> None:
    body = "\n".join(["    x = 1"] * 90)
    tree = ast.parse(f"class A:\n  def __init__(self, {', '.join('abcdefghi')}):\n{body}\n")
    assert list(long_functions(tree)) == ["__init__"]
    assert list(long_constructors(tree)) == ["A"]
    assert not is_told(ast.parse('"""What it is."""'))
    assert is_told(ast.parse('"""What it is.\n\nImports the ground. Used by the engine."""'))


def is_client_pair(paths: set[str]) -> bool:
    """One class is for threads, and one, of the same name, for asyncio."""
    clients = {path for path in paths if path.startswith("streamlog/client/")}
    aio = {path for path in clients if path.startswith("streamlog/client/aio/")}
    return paths == clients and len(aio) == 1 and len(clients) == 2


def twins(trees: Mapping[str, ast.Module]) -> set[str]:
    """Names of classes in several files. Private classes are known in their own file alone."""
    homes: dict[str, set[str]] = {}
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, set()).add(path)
    return {name for name, paths in homes.items() if len(paths) > 1 and not is_client_pair(paths)}


def test_a_class_name_means_one_thing() -> None:
    assert not twins(modules())


def test_a_name_of_two_things_is_found() -> None:
    node = ast.parse("class Node: ...\nclass _Own: ...\n")
    assert twins({"server/node.py": node, "kvstore/node.py": node}) == {"Node"}
    assert twins({"streamlog/client/kv.py": node, "streamlog/client/aio/kv.py": node}) == set()
    assert twins({"streamlog/client/kv.py": node, "streamlog/client/tls.py": node}) == {"Node"}
    assert twins({"streamlog/client/aio/kv.py": node, "kvstore/store.py": node}) == {"Node"}


def opens_with_upkeep(tree: ast.AST) -> bool:
    """Whether it calls `streamlog.open` without `upkeep=False`."""
    return any(
        isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("streamlog.open", "wiring.open")
        and "upkeep=False" not in [ast.unparse(keyword) for keyword in node.keywords]
        for node in ast.walk(tree)
    )


def test_only_a_node_deletes_by_its_settings() -> None:
    """A tool that opens a stopped node's engine may not have the node's settings."""
    found = {path for path, tree in modules().items() if opens_with_upkeep(tree)}
    assert {path for path in found if not path.startswith("streamlog/testing/")} == {
        "server/node.py"
    }
    assert opens_with_upkeep(ast.parse("async with streamlog.open(url, upkeep=True): ..."))
    assert not opens_with_upkeep(ast.parse("async with wiring.open(url, upkeep=False): ..."))
