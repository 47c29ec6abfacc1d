#!/usr/bin/env python3
"""Measure the structure of the five folders and print it as a table.

    python .ci/structure.py                 this checkout
    python .ci/structure.py OLDER           another checkout, such as one of an earlier commit
    python .ci/structure.py OLDER . --types both side by side, with the type checker's errors (half a minute each)

An arrow is an import from one module of ours to another, imports inside functions included and imports for type
checkers left out. A floor is a step of the longest chain of imports inside a folder. A public name is a module-level
class or function, or a method of a public class, whose name has no leading underscore.
"""

import argparse
import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("storage", "extract", "preprocess", "train", "ray_jobs")
MOST_LINES_OF_FUNCTION, LINE_LENGTH = 60, 120
OBJECTIVES = {"taco", "toco", "toco-mlm", "ssml", "mil-nce", "ncl", "cmcm", "vqa", "segmentation"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One Python file of the five folders."""

    path: Path
    name: str
    """Dotted, from the folder on, such as "train.data.pairs"."""
    text: str
    tree: ast.Module

    @property
    def folder(self) -> str:
        return self.name.split(".")[0]

    @property
    def package(self) -> list[str]:
        parts = self.name.split(".")
        return parts if self.path.name == "__init__.py" else parts[:-1]


def read_modules(top: Path) -> dict[str, Module]:
    """Read all modules under ``top``: {dotted name: module}."""
    modules = {}
    for folder in FOLDERS:
        for path in sorted((top / folder).rglob("*.py")):
            parts = path.relative_to(top).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            text = path.read_text(encoding="utf-8")
            modules[name] = Module(path, name, text, ast.parse(text))
    return modules


def runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree without the blocks under ``if TYPE_CHECKING``."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from runtime_nodes(child)


def imports_of(module: Module, modules: dict[str, Module]) -> set[str]:
    """Return the names of our modules that a module imports."""
    targets: set[str] = set()
    for node in runtime_nodes(module.tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = module.package[: len(module.package) - node.level + 1]
            target = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                part = f"{target}.{alias.name}"
                targets.add(part if part in modules else target)
    return (targets & modules.keys()) - {module.name}


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of two or more modules that import each other (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in sorted(arrows[name]):
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                groups.append(sorted(group))

    for name in sorted(arrows):
        if name not in index:
            visit(name)
    return groups


def num_floors(folder: str, arrows: dict[str, set[str]]) -> int:
    """Return the number of modules in the longest chain of imports inside a folder (circles are cut)."""
    heights: dict[str, int] = {}

    def height(name: str, above: frozenset[str]) -> int:
        if name not in heights:
            below = [t for t in arrows[name] if t.split(".")[0] == folder and t not in above]
            heights[name] = 1 + max((height(t, above | {name}) for t in below), default=0)
        return heights[name]

    return max(height(name, frozenset()) for name in arrows if name.split(".")[0] == folder)


def functions_of(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def objective_comparisons(module: Module) -> list[int]:
    """Return the lines on which a module compares something with an objective's name.

    An objective may do so in its own file; a data set or a task that shares its name is no objective.
    """
    if module.name.startswith("train.objectives.") or module.folder != "train":
        return []
    lines = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            is_setting = any(isinstance(side, ast.Attribute) and side.attr == "objective" for side in sides)
            names = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)} & OBJECTIVES
            if is_setting or (names and "objective" in ast.unparse(node)):
                lines.append(node.lineno)
    return lines


def dict_signatures(module: Module) -> list[int]:
    """Return the lines of functions that take or return a dict of anything (``dict``, ``dict[str, Any]``, a list of
    those)."""
    lines = []
    for function in functions_of(module.tree):
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        annotations = [a.annotation for a in arguments if a.annotation] + (
            [function.returns] if function.returns else []
        )
        texts = [ast.unparse(annotation) for annotation in annotations]
        if any(
            "dict[str, Any]" in text or "dict[str, object]" in text or text in ("dict", "list[dict]") for text in texts
        ):
            lines.append(function.lineno)
    return lines


def without_docstring(module: Module) -> list[str]:
    """Return the public names of a module that have no docstring."""
    names = []

    def look(node: ast.Module | ast.ClassDef, prefix: str) -> None:
        for child in node.body:
            if not isinstance(child, (ast.ClassDef, *Function.__args__)) or child.name.startswith("_"):
                continue
            if ast.get_docstring(child) is None:
                names.append(prefix + child.name)
            if isinstance(child, ast.ClassDef):
                look(child, prefix + child.name + ".")

    look(module.tree, f"{module.name}.")
    return names


def type_errors(top: Path) -> int:
    """Return the number of errors that basedpyright finds in a checkout, with that checkout's settings or else ours."""
    here = Path(__file__).resolve().parents[1]
    checker = here / ".venv/bin/basedpyright"
    project = top if "[tool.basedpyright]" in (top / "pyproject.toml").read_text(encoding="utf-8") else None
    if project is None:
        settings = {"include": [str(top / f) for f in FOLDERS], "venvPath": str(here), "venv": ".venv"}
        settings |= {"pythonVersion": "3.10", "typeCheckingMode": "standard"}
        path = top / "pyrightconfig.json"
        path.write_text(json.dumps(settings), encoding="utf-8")
        command = [checker, "--outputjson", "--project", path]
    else:
        command = [checker, "--outputjson"]
    ran = subprocess.run(command, cwd=top, capture_output=True, text=True, check=False)
    if project is None:
        path.unlink()
    return json.loads(ran.stdout)["summary"]["errorCount"]


def measure(top: Path, with_types: bool) -> dict[str, str]:
    """Return the figures of a checkout: {what is measured: figure in words}."""
    modules = read_modules(top)
    arrows = {name: imports_of(module, modules) for name, module in modules.items()}
    figures = {}
    for folder in FOLDERS:
        names = [name for name in modules if name.split(".")[0] == folder]
        rooms = {".".join(m.package) for m in modules.values() if m.folder == folder}
        inside = sum(target.split(".")[0] == folder for name in names for target in arrows[name])
        figures[f"{folder}/: rooms, files, arrows inside, floors"] = (
            f"{len(rooms)}, {len(names)}, {inside}, {num_floors(folder, arrows)}"
        )
    figures["circles of imports"] = str(len(circles(arrows)))
    lengths = [len(m.text.splitlines()) for m in modules.values()]
    statements = sum(isinstance(node, ast.stmt) for m in modules.values() for node in ast.walk(m.tree))
    figures["files, lines, statements"] = f"{len(modules)}, {sum(lengths):,}, {statements:,}"
    functions = [f for m in modules.values() for f in functions_of(m.tree)]
    long = [f for f in functions if (f.end_lineno or f.lineno) - f.lineno + 1 > MOST_LINES_OF_FUNCTION]
    figures[f"functions over {MOST_LINES_OF_FUNCTION} lines"] = f"{len(long)} of {len(functions)}"
    too_long = sum(len(line) > LINE_LENGTH for m in modules.values() for line in m.text.splitlines())
    figures[f"lines over {LINE_LENGTH} columns"] = str(too_long)
    figures["comparisons of objective names outside their file"] = str(
        sum(len(objective_comparisons(m)) for m in modules.values())
    )
    figures["signatures with dicts of anything"] = str(sum(len(dict_signatures(m)) for m in modules.values()))
    figures["public names without docstring"] = str(sum(len(without_docstring(m)) for m in modules.values()))
    if with_types:
        figures["type errors"] = str(type_errors(top))
    figures["bytes of README.md"] = f"{(top / 'README.md').stat().st_size:,}"
    return figures


def details(top: Path) -> Iterator[str]:
    """Yield a line for each thing that should not be there."""
    modules = read_modules(top)
    arrows = {name: imports_of(module, modules) for name, module in modules.items()}
    yield from (f"circle: {' '.join(group)}" for group in circles(arrows))
    for module in modules.values():
        for f in functions_of(module.tree):
            if (f.end_lineno or f.lineno) - f.lineno + 1 > MOST_LINES_OF_FUNCTION:
                yield f"{module.path}:{f.lineno}: {f.name} has {(f.end_lineno or f.lineno) - f.lineno + 1} lines"
        yield from (f"{module.path}:{line}: compares an objective's name" for line in objective_comparisons(module))
        yield from (f"{module.path}:{line}: dict in a signature" for line in dict_signatures(module))
        yield from (f"{module.path}: no docstring: {name}" for name in without_docstring(module))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("checkouts", nargs="*", type=Path, default=[Path(".")], help="folders (default: this one)")
    parser.add_argument("--types", action="store_true", help="count type errors too")
    parser.add_argument("--list", action="store_true", help="list what should not be there, in the first checkout")
    args = parser.parse_args()
    if args.list:
        sys.stdout.writelines(line + "\n" for line in details(args.checkouts[0].resolve()))
        return
    columns = [measure(top.resolve(), args.types) for top in args.checkouts]
    for name in columns[0]:
        print(f"{name:<52}" + "".join(f"{column.get(name, ''):>22}" for column in columns))


if __name__ == "__main__":
    main()
