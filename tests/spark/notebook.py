"""Carries out a notebook's code cells, in order, in this process; Jupyter is not needed.

python -m tests.spark.notebook NOTEBOOK TARGET    writes it to TARGET with the outputs of its cells
"""

from __future__ import annotations

import ast
import json
import signal
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from streamlog.demo import node as demo_node

START_TIMEOUT_S = 600.0


def _carry_out(source: str, names: dict[str, Any]) -> tuple[str, object]:
    """What the cell printed, and the value of its last line where that is an expression."""
    tree, printed = ast.parse(source), StringIO()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        value = None
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307
    return printed.getvalue(), value


def _outputs(printed: str, value: Any, number: int) -> list[dict[str, Any]]:
    """As the notebook format has them."""
    outputs: list[dict[str, Any]] = []
    if printed:
        text = printed.splitlines(keepends=True)
        outputs.append({"name": "stdout", "output_type": "stream", "text": text})
    if value is not None:
        picture = value._repr_svg_().splitlines(keepends=True)
        outputs.append(
            {
                "data": {"image/svg+xml": picture, "text/plain": ["<SVG>"]},
                "execution_count": number,
                "metadata": {},
                "output_type": "execute_result",
            }
        )
    return outputs


def main(source: Path, target: Path) -> None:
    # A machine that runs tests may be slower than one that a person sits at.
    demo_node.START_TIMEOUT_S = START_TIMEOUT_S
    notebook = json.loads(source.read_text("utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    # So that the node is stopped in any case.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    try:
        cells = (cell for cell in notebook["cells"] if cell["cell_type"] == "code")
        for number, cell in enumerate(cells, 1):
            printed, value = _carry_out("".join(cell["source"]), names)
            cell["execution_count"] = number
            cell["outputs"] = _outputs(printed, value, number)
    finally:
        if "node" in names:
            names["node"].discard()
    target.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
