"""Generate docs/api.md, the reference of the public API, from the docstrings.

python scripts/api_docs.py            write the page
python scripts/api_docs.py --check    change nothing; exit with code 1 if the page is out of date
"""

import argparse
import ast
import inspect
import sys
from pathlib import Path
from typing import Any

import regard

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
SECTIONS = {
    "Functions": ("load", "train", "evaluate", "trace", "read_recipe", "save_model"),
    "Pipelines": ("Pipeline", "Translator", "TextGenerator", "Parser", "FillMask", "TextLabeler", "ImageClassifier"),
    "Training": ("Recipe", "TrainConfig", "Callback"),
    "Models": ("EncoderDecoderConfig", "LanguageModelConfig", "EncoderConfig", "VisionTransformerConfig"),
    "Attention": ("attend", "Pattern", "Full", "Causal", "Sliding", "Dilated", "Global"),
    "Decoding": (
        "DecodeConfig",
        "Constraints",
        "SearchStrategy",
        "Greedy",
        "Sampler",
        "BeamSearch",
        "DiverseBeamSearch",
        "ConstrainedBeamSearch",
        "greedy_search",
        "beam_search",
    ),
    "Errors": ("UserError",),
}
INTRODUCTION = """# API reference

The public Python API: `import regard`, then `regard.NAME`. This page is generated from the docstrings by
`python scripts/api_docs.py`; a test checks that it is up to date.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate docs/api.md from the docstrings.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the page is out of date")
    check, text = parser.parse_args().check, render()
    outdated = not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text
    if check and outdated:
        print("docs/api.md is out of date. Run `python scripts/api_docs.py`.", file=sys.stderr)
        return 1
    if outdated:
        PAGE.write_text(text, encoding="utf-8")
    return 0


def render() -> str:
    """The complete page."""
    listed = {name for names in SECTIONS.values() for name in names}
    missing = set(regard.__all__) - listed - {"__version__"}
    assert not missing, f"no section lists {sorted(missing)}"
    parts = [INTRODUCTION]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [_entry(name) for name in names]
    return "\n".join(parts)


def _entry(name: str) -> str:
    item: Any = regard.train_recipe if name == "train" else getattr(regard, name)
    node = _definition(item)
    lines = [f"### `regard.{name}`\n"]
    if isinstance(node, ast.FunctionDef):
        lines += [_code(_signature(node, name)), _docstring(node)]
        return "\n".join(lines)
    assert isinstance(node, ast.ClassDef)
    constructor = next((method for method in node.body if _is_method(method, "__init__")), None)
    if isinstance(constructor, ast.FunctionDef):
        lines.append(_code(_signature(constructor, name)))
    lines.append(_docstring(node))
    if isinstance(constructor, ast.FunctionDef) and ast.get_docstring(constructor):
        lines.append(_docstring(constructor))
    lines += _fields(node)
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_") and ast.get_docstring(method):
            lines.append(f"- `{_signature(method, method.name)}`: {_indented(ast.get_docstring(method) or '')}")
    return "\n".join(lines).rstrip("\n") + "\n"


def _definition(item: Any) -> ast.AST:
    """The syntax tree of a class or function."""
    item = inspect.unwrap(item)
    path = inspect.getsourcefile(item)
    assert path is not None
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    return next(node for node in tree.body if getattr(node, "name", None) == item.__name__)


def _is_method(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == name


def _signature(node: ast.FunctionDef, name: str) -> str:
    """NAME(parameters) -> result, without `self` or quotes around annotations; a property has no parameters."""
    arguments = node.args
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    result = "" if node.returns is None or node.name == "__init__" else f" -> {_annotation(node.returns)}"
    if "property" in decorators:
        return f"{name}{result}"
    for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]:
        if argument is not None and argument.annotation is not None:
            argument.annotation = ast.parse(_annotation(argument.annotation), mode="eval").body
    if arguments.args and arguments.args[0].arg in ("self", "cls"):
        arguments.args = arguments.args[1:]
    return f"{name}({ast.unparse(arguments)}){result}"


def _annotation(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)


def _fields(node: ast.ClassDef) -> list[str]:
    """The public fields of a config or dataclass: name, type, default and docstring."""
    lines = []
    for item, after in zip(node.body, [*node.body[1:], ast.Pass()], strict=True):
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        name, kind = item.target.id, ast.unparse(item.annotation)
        if name.startswith("_") or kind.startswith("ClassVar"):
            continue
        default = "" if item.value is None else f" = {ast.unparse(item.value)}"
        text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        lines.append(f"- `{name}: {kind}{default}`" + (f": {_indented(inspect.cleandoc(str(text)))}" if text else ""))
    return [*lines, ""] if lines else []


def _docstring(node: ast.AsyncFunctionDef | ast.FunctionDef | ast.ClassDef) -> str:
    return (ast.get_docstring(node) or "") + "\n"


def _indented(text: str) -> str:
    """A docstring inside a list."""
    return text.replace("\n\n", "\n\n  ").replace("\n", "\n  ").replace("\n  \n", "\n\n").replace("    ", "  ")


def _code(text: str) -> str:
    return f"```text\n{text}\n```\n"


if __name__ == "__main__":
    sys.exit(main())
