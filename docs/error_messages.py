"""The error messages of the package, read from its source."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
FOLDERS = ("extract", "preprocess", "train", "storage", "ray_jobs")
GAP = "…"
"""Placeholder for the variable part of a message, such as a path."""


@dataclass(frozen=True)
class ErrorMessage:
    """One place that raises an error of ours."""

    module: Path
    about: str
    """First line of the module's docstring."""
    text: str
    """The message, with ``GAP`` for its variable parts."""


def error_messages() -> Iterator[ErrorMessage]:
    """Yield the messages of all ``UserError`` and ``SettingError`` of the package, in the order of the source."""
    for folder in FOLDERS:
        for path in sorted((TOP / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            about = (ast.get_docstring(tree) or path.stem).splitlines()[0]
            for text in _messages(tree, _strings(tree.body)):
                yield ErrorMessage(path.relative_to(TOP), about, text)


def _strings(body: list[ast.stmt]) -> dict[str, ast.expr]:
    """Return the expressions that names are assigned to in a block; the first if there are several."""
    found: dict[str, ast.expr] = {}
    for node in (node for statement in body for node in ast.walk(statement)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, node.value)
        elif isinstance(node, ast.NamedExpr):
            found.setdefault(node.target.id, node.value)
    return found


def _messages(tree: ast.Module, of_module: dict[str, ast.expr]) -> Iterator[str]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    seen: set[ast.Call] = set()
    for block in [*sorted(functions, key=lambda node: node.lineno), tree]:
        names = of_module | _strings(block.body)
        for node in ast.walk(block):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node not in seen and node.args:
                seen.add(node)
                if node.func.id == "UserError":
                    yield _text(node.args[0], names)
                elif node.func.id == "SettingError" and len(node.args) == 3:
                    setting = _text(node.args[0], names).replace("_", "-")
                    yield f"--{setting} {GAP}: {_text(node.args[2], names)}"
                elif node.func.id in ("unreadable", "refuse_unreadable") and len(node.args) > 1:
                    what, *todo = [_text(argument, names) for argument in node.args[1:3]]
                    yield f"{GAP}: {what} ({GAP})" + "".join(f"; {each}" for each in todo if each != GAP)


def _text(node: ast.expr, names: dict[str, ast.expr], depth: int = 3) -> str:
    """Return a string expression with ``GAP`` for its run-time parts."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, names, depth) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, names, depth) + _text(node.right, names, depth)
    if isinstance(node, ast.IfExp):
        return _text(node.body, names, depth)
    if isinstance(node, ast.FormattedValue):
        inner = node.value
        return _text(inner, names, depth) if isinstance(inner, ast.Name | ast.IfExp | ast.Constant) else GAP
    if isinstance(node, ast.Name) and node.id in names and depth:
        value = names[node.id]
        if isinstance(value, ast.JoinedStr | ast.BinOp | ast.IfExp) or (
            isinstance(value, ast.Constant) and isinstance(value.value, str)
        ):
            return _text(value, names, depth - 1)
    return GAP
