"""Nothing but ``storage/common/writing.py`` changes files and folders, so that no place forgets what it checks."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent
FOLDERS = ("storage", "extract", "preprocess", "train", "ray_jobs")
HOME = "storage/common/writing.py"
METHODS = {
    *("mkdir", "rmdir", "touch", "unlink", "rename", "chmod", "lchmod", "symlink_to", "hardlink_to"),
    *("write_text", "write_bytes", "save_pretrained", "savefig"),
}
FUNCTIONS = {
    "os": {
        *("mkdir", "makedirs", "remove", "unlink", "removedirs", "rmdir", "rename", "renames", "replace", "link"),
        *("symlink", "mkfifo", "mknod", "chmod", "chown", "lchown", "truncate", "utime", "setxattr"),
    },
    "shutil": {"rmtree", "move", "copy", "copy2", "copyfile", "copytree", "chown", "make_archive", "unpack_archive"},
    "torch": {"save"},
    "np": {"save", "savez", "savez_compressed", "savetxt", "memmap"},
    "pq": {"write_table", "ParquetWriter"},
    "tempfile": {"mkdtemp", "mkstemp", "TemporaryDirectory", "NamedTemporaryFile", "TemporaryFile", "mktemp"},
    "sqlite3": {"connect"},
    "shelve": {"open"},
}
NAMES = {"SummaryWriter", "save_file", "copyfile", "rmtree"}
FOR_READING = {"r", "rb", "rt", "r:", "r|"}

OWN = "a temporary file or folder of this process, with a random name that only its user can open"
PLACES = {
    "extract/decoding/webm_clip.py webm_clip": "in memory",
    "extract/decoding/span.py copy_container": "in memory",
    "extract/decoding/clip_file.py _open_output": "in memory",
    "extract/decoding/ffmpeg_backend.py _memory_file": OWN,
    "extract/decoding/process_link.py create_memory": OWN,
    "extract/decoding/process_link.py _start_connecting": OWN,
    "extract/decoding/process_link.py child_link": OWN,
    "extract/pipeline/download.py _fetch": OWN,
    "extract/pipeline/download.py done": OWN,
    "extract/pipeline/rows.py _file": OWN,
    "ray_jobs/cluster.py _settings_of_local_ray": OWN,
    "storage/cli/command.py _run": "/dev/null",
    "storage/common/programs.py keep_compiled_code_private": "the user's own cache, which is in no data set",
    "storage/common/temporary_folder.py __init__": OWN,
    "storage/common/temporary_folder.py _remove": OWN,
    "storage/common/temporary_folder.py _remove_left_behind": "this user's own temporary folder, whose process ended",
    "storage/exchange/exports.py _write_npz": "an open file",
    "storage/exchange/parquet.py _write_file": "called with a path of atomic_write",
    "storage/untrusted/hdf5.py new_hdf5": "called with a path of atomic_write",
    "storage/common/tensor_files.py _mapped": "memory that is mapped for reading",
    "storage/common/tensor_files.py add": "has no name",
    "storage/common/tensor_files.py open": OWN,
    "storage/hub/loading.py _processor_files": OWN,
    "storage/remote/store.py fetch": "asks a server",
    "storage/shards/write.py lay_out": "in memory",
    "storage/common/user_state.py writable_state_file": "the user's own state, which is in no data set",
    "storage/captions/word_vectors.py write_word_vectors": "an open file",
    "train/benchmarks/task_videos.py _jobs": OWN,
    "train/benchmarks/task_videos.py features": OWN,
    "train/comparison/sentence_transformer.py _same_model": OWN,
    "train/comparison/sentence_transformer.py export_sentence_transformer": "a folder that make_folder has checked, "
    "which was empty",
    "train/data/text_inputs.py save_text_inputs": "a folder with a random name, in one that make_folder has checked",
    "train/data/text_inputs.py save": "a folder with a random name, in one that make_folder has checked",
    "train/loop/event_log.py _open_board": "a folder that make_folder has checked, without links",
    "train/page/exports.py clip": OWN,
    "train/page/browser_clips.py _path": OWN,
    "train/page/browser_clips.py _write": OWN,
    "train/page/example_pictures.py _kept": OWN,
    "train/page/example_pictures.py add": OWN,
    "train/search/caption_index.py __init__": "opened for reading only",
    "train/search/caption_index.py _write": "a path of atomic_write",
    "train/evaluation/evaluate.py _write_scores": "an open file",
    "train/evaluation/svg.py svg_of": "in memory",
}
"""{file and function: why what is opened for writing there, or changed, cannot be another one's}"""


def changes(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Yield each call that may change files, with the name of the function around it.

    Those of paths that ``atomic_write`` has made are left out.
    """

    def visit(node: ast.AST, around: str, unfinished: set[str]) -> Iterator[tuple[str, ast.Call]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            around, unfinished = node.name, set()
        for item in node.items if isinstance(node, ast.With) else []:
            if isinstance(item.context_expr, ast.Call) and ast.unparse(item.context_expr.func) == "atomic_write":
                unfinished.add(ast.unparse(item.optional_vars))
        if isinstance(node, ast.Call) and may_change(node):
            names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            if not names & unfinished:
                yield around, node
        for child in ast.iter_child_nodes(node):
            yield from visit(child, around, unfinished)

    return visit(tree, "", set())


def may_change(call: ast.Call) -> bool:
    """Return whether a call may write, create, rename or remove something."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in NAMES or (function.id == "open" and not is_for_reading(call, 1))
    if not isinstance(function, ast.Attribute):
        return False
    of = function.value.id if isinstance(function.value, ast.Name) else ""
    if of in FUNCTIONS:
        return function.attr in FUNCTIONS[of] or (of == "os" and function.attr == "open" and writes(call))
    if function.attr == "replace" and len(call.args) == 1 and not call.keywords:  # texts take two arguments
        return True
    if function.attr == "open" and of != "os":  # Path.open(mode), and open(file, mode) of any module
        modes = [each for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        modes += [word.value for word in call.keywords if word.arg == "mode" and isinstance(word.value, ast.Constant)]
        return any(set(str(mode.value)) <= set("rwaxbt+:|") and mode.value not in FOR_READING for mode in modes)
    if function.attr == "File":  # h5py
        return not is_for_reading(call, 1)
    return function.attr in METHODS | NAMES


def is_for_reading(call: ast.Call, place: int) -> bool:
    """Return whether the mode of an ``open`` is stated, and one for reading; without one, files are read."""
    mode = (
        call.args[place] if len(call.args) > place else next((w.value for w in call.keywords if w.arg == "mode"), None)
    )
    return mode is None or (isinstance(mode, ast.Constant) and mode.value in FOR_READING)


def writes(call: ast.Call) -> bool:
    """Return whether the flags of an ``os.open`` name one that writes."""
    return any(
        isinstance(node, ast.Attribute) and node.attr in ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND")
        for flags in call.args[1:]
        for node in ast.walk(flags)
    )


def found() -> dict[str, list[int]]:
    """Return {file and function: lines that may change files}."""
    places: dict[str, list[int]] = {}
    for folder in FOLDERS:
        for path in sorted((TOP / folder).rglob("*.py")):
            name = path.relative_to(TOP).as_posix()
            if name == HOME:
                continue
            for function, call in changes(ast.parse(path.read_text(encoding="utf-8"))):
                places.setdefault(f"{name} {function}", []).append(call.lineno)
    return places


def test_nothing_else_changes_files():
    places = found()
    assert {place: lines for place, lines in places.items() if place not in PLACES} == {}
    assert PLACES.keys() - places.keys() == set(), "gone"


@pytest.mark.parametrize(
    "code",
    [
        "path.unlink()", "open(path, 'w')", "open(path, mode)", "path.open('ab')", "os.replace(a, b)",
        "path.replace(b)",
        "os.open(path, os.O_RDWR)", "h5py.File(path, 'w')", "torch.save(x, path)", "tarfile.open(path, 'w')",
        "av.open(path, 'w', format='mp4')", "shutil.rmtree(path)", "path.open(mode='x')",
    ],
)  # fmt: skip
def test_changes_are_noticed(code):
    assert list(changes(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "open(path)", "open(path, 'rb')", "path.open()", "text.replace('a', 'b')", "os.open(path, os.O_RDONLY)",
        "h5py.File(path, 'r')",
    ],
)  # fmt: skip
def test_reading_is_no_change(code):
    assert not list(changes(ast.parse(code)))
