"""Run the notebooks in examples/notebooks and store their outputs in them.

python scripts/notebooks.py                                    run all of them
python scripts/notebooks.py language-model --set STEPS=20      run one with another parameter; nothing is stored

Cells are run one after another in a folder of their own, as Jupyter runs them, but without Jupyter. The first code cell
of a notebook has the tag "parameters", as for papermill: --set adds assignments behind it.
"""

import argparse
import ast
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "examples" / "notebooks"
MAX_HTML = 30_000
"""Characters of HTML that are stored; more, such as an interactive page, is left to those who run the notebook."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the notebooks and store their outputs.")
    parser.add_argument("names", nargs="*", help="notebooks to run; all of them by default")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter; store nothing")
    arguments = parser.parse_args()
    parameters = {name: ast.literal_eval(value) for name, _, value in (each.partition("=") for each in arguments.set)}
    for path in notebooks():
        if not arguments.names or path.stem in arguments.names:
            print(path.stem, flush=True)
            finished = run(path, parameters)
            if not parameters:
                path.write_text(json.dumps(finished, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


def notebooks() -> list[Path]:
    return sorted(FOLDER.glob("*.ipynb"))


def run(path: Path, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The notebook with the outputs of all its cells. An error in a cell is raised."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    with _temporary_folder():
        count = 0
        for cell in notebook["cells"]:
            if cell["cell_type"] != "code":
                continue
            count += 1
            cell["execution_count"] = count
            cell["outputs"] = _run_cell("".join(cell["source"]), f"{path.name}, cell {count}", names)
            if "parameters" in cell["metadata"].get("tags", ()):
                names.update(parameters or {})
    return notebook


def _run_cell(source: str, where: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell; its outputs are what it prints, and the value of its last line if that is an expression."""
    tree, value = ast.parse(source, where), None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, where, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), where, "eval"), names)
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        html = value._repr_html_() if hasattr(value, "_repr_html_") else ""
        if 0 < len(html) <= MAX_HTML:
            data["text/html"] = html.splitlines(keepends=True)
        outputs.append({"data": data, "execution_count": None, "metadata": {}, "output_type": "execute_result"})
    return outputs


@contextlib.contextmanager
def _temporary_folder() -> Iterator[None]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


if __name__ == "__main__":
    sys.exit(main())
