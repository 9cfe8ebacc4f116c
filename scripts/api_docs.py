"""Generate docs/api.md, the reference of the public API, from the docstrings.

python scripts/api_docs.py            write the page
python scripts/api_docs.py --check    change nothing; exit with code 1 if the page is out of date
"""

import argparse
import ast
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import regard

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
SECTIONS = {
    "Functions": ("load", "train", "recipes", "evaluate", "trace", "read_recipe", "save_model"),
    "Pipelines": ("Pipeline", "Translator", "TextGenerator", "Parser", "FillMask", "TextLabeler", "ImageClassifier"),
    "Results": (
        "TranslatedText",
        "Translation",
        "GeneratedText",
        "Tree",
        "ParsedSentence",
        "TaggedWords",
        "Guess",
        "Trace",
        "RunResult",
        "Score",
    ),
    "Training": ("Recipe", "TrainConfig", "Callback", "PrinterCallback"),
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
MAX_SIGNATURE = 110
"""The longest signature on one line."""
NOT_LISTED = {
    "unsupported_reason",
    "encode_masked",
    "fill_rows",
    "prompt_ids",
    "end_id",
    "generate_nbest",
    "classify_each",
}
"""Methods of pipelines that serve other parts of the package."""
INTRODUCTION = """# API reference

The public Python API: `import regard`, then `regard.NAME`.

```python
import regard

translator = regard.load("en-tr")
translator.translate("The cat ate the mouse.")  # a string in, a string out
translator.translate(["Good morning.", "See you soon."])  # a list in, a list out, in batches
translator.translate("See you soon.", nbest=3)  # the three best translations
translator.translate("See you soon.", details=True)  # with scores and token probabilities
translator.translate("See you soon.", temperature=0.8, seed=1)  # the options of `regard translate`
```

All pipelines work like this: `translate`, `generate`, `parse`, `fill`, `classify` and `tag` take one input or a list,
and the options of the command of the same name as keyword arguments. Where a model searches for its output
(`translate`, `generate`, `parse`), `details=True` returns an object with scores instead of the plain result; where it
chooses among words or classes (`fill` with `top`, `classify`, `tag`), the probabilities are part of the result. Paths
may be strings everywhere. What is wrong with an input, a file or a setting is a `UserError` whose message says what to
do.

This page is generated from the docstrings by `python scripts/api_docs.py`; a test checks that it is up to date.
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
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef) and _is_listed(each)]
    short = [
        f"- `{_signature(each, each.name)}`: {_indented(_text(each))}" for each in methods if not _has_example(each)
    ]
    lines += [*short, ""] if short else []
    for each in filter(_has_example, methods):
        lines += [f"#### `{name}.{each.name}`\n", _code(_signature(each, each.name)), _docstring(each)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _is_listed(method: ast.FunctionDef) -> bool:
    return not method.name.startswith("_") and method.name not in NOT_LISTED and bool(_text(method))


def _has_example(method: ast.FunctionDef) -> bool:
    return "\n    " in _text(method)


def _text(node: ast.FunctionDef | ast.ClassDef) -> str:
    """The docstring; a line with a shape, which a comment sign begins, would be a heading."""
    return re.sub(r"^# \(", "Shape: (", ast.get_docstring(node) or "", flags=re.MULTILINE)


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
    if {"property", "cached_property"} & set(decorators):
        return f"{name}{result}"
    for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]:
        if argument is not None and argument.annotation is not None:
            argument.annotation = ast.parse(_annotation(argument.annotation), mode="eval").body
    if arguments.args and arguments.args[0].arg in ("self", "cls"):
        arguments.args = arguments.args[1:]
    return f"{name}({ast.unparse(arguments)}){result}".replace("Texts", "list[str]")


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
        default = _default(item.value)
        text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        lines.append(f"- `{name}: {kind}{default}`" + (f": {_indented(inspect.cleandoc(str(text)))}" if text else ""))
    return [*lines, ""] if lines else []


def _default(value: ast.expr | None) -> str:
    """= DEFAULT, without the limits of a config's field; empty if the field is required."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "Field":
        value = next((keyword.value for keyword in value.keywords if keyword.arg == "default"), None)
    return "" if value is None else f" = {ast.unparse(value)}"


def _docstring(node: ast.FunctionDef | ast.ClassDef) -> str:
    """A docstring with its indented examples as blocks of code."""
    lines: list[str] = []
    code = False
    for line in _text(node).splitlines():
        indented = line.startswith("    ")
        if indented and not code and (not lines or not lines[-1]):
            lines.append("```python")
            code = True
        elif code and line and not indented:
            lines.insert(len(lines) - 1 if not lines[-1] else len(lines), "```")
            code = False
        lines.append(re.sub(r" +# ", "  # ", line.removeprefix("    ")) if code else line)
    return "\n".join([*lines, "```"] if code else lines) + "\n"


def _indented(text: str) -> str:
    """A docstring inside a list."""
    return text.replace("\n\n", "\n\n  ").replace("\n", "\n  ").replace("\n  \n", "\n\n").replace("    ", "  ")


def _code(signature: str) -> str:
    """A signature as a block of code; a long one has a line for each parameter."""
    name, found, rest = signature.partition("(")
    if found and len(signature) > MAX_SIGNATURE:
        parameters, end, result = rest.rpartition(") -> ") if ") -> " in rest else rest.rpartition(")")
        names = "".join(f"    {each},\n" for each in _split_parameters(parameters))
        signature = f"{name}(\n{names}{end}{result}"
    return f"```text\n{signature}\n```\n"


def _split_parameters(parameters: str) -> list[str]:
    """The parameters of a signature, separated by the commas outside brackets."""
    parts, depth = [""], 0
    for character in parameters:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


if __name__ == "__main__":
    sys.exit(main())
