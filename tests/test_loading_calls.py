"""Only named places load what a name or a file says, unpickle, or start programs, each for a reason."""

import ast
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[1]
FOLDERS = ("storage", "extract", "preprocess", "train", "ray_jobs")
FILES = sorted(path for folder in FOLDERS for path in (TOP / folder).rglob("*.py"))
METHODS = {
    *("from_pretrained", "from_config", "from_file", "read_index", "create_model", "load_state_dict_from_url"),
    *("import_module", "spec_from_file_location", "exec_module", "load_module"),
    *("Popen", "Unpickler", "_Unpickler", "spawnv_passfds", "startfile"),
}
"""Functions by the last part of their names."""
FUNCTIONS = {
    "": {"__import__", "eval", "exec"},
    "joblib": {"load"},
    "marshal": {"load", "loads"},
    "np": {"load", "lib.format.read_array"},
    "os": {"fork", "forkpty", "popen", "posix_spawn", "posix_spawnp", "system"}
    | {f"{kind}{how}" for kind in ("exec", "spawn") for how in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")},
    "pickle": {"load", "loads"},
    "runpy": {"run_module", "run_path"},
    "shutil": {"which"},
    "spacy": {"load"},
    "subprocess": {"call", "check_call", "check_output", "getoutput", "getstatusoutput", "run"},
    "torch": {"hub.load", "jit.load", "load"},
    "yaml": {"full_load", "full_load_all", "load", "load_all", "unsafe_load", "unsafe_load_all"},
}
"""{module, as it is imported: its functions}"""
MODULES = {"numpy": "np"} | {name: name for name in FUNCTIONS if name not in ("", "np")}
SAFE = {
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
    "np.lib.format.read_array": ("allow_pickle", False),
}
"""Functions that anybody may call with this argument."""
ALLOWED = {
    "extract/decoding/child.py": {
        "importlib.import_module": "modules of PyAV and NumPy",
    },
    "extract/decoding/confined_process.py": {
        "os.fork": "the confined decoder is forked from the process that opens files",
    },
    "extract/decoding/ffmpeg_backend.py": dict.fromkeys(
        ("subprocess.Popen", "subprocess.run"), "the ffmpeg program that find_program found"
    ),
    "extract/decoding/process_link.py": {"subprocess.Popen": "a decoder, by python_command"},
    "extract/speech/child.py": {
        "importlib.import_module": "modules of NumPy",
        "os.fork": "the confined recogniser is forked from the process that opens files",
    },
    "extract/decoding/torchcodec_backend.py": {"importlib.import_module": "torchcodec, once memory is limited"},
    "preprocess/tag.py": {"spacy.load": "a pipeline that is an installed package"},
    "storage/captions/languages.py": {"runpy.run_path": "spaCy's lists of stop words, files of the installed package"},
    "storage/cli/all_commands.py": {"importlib.import_module": "commands, from a table in the same file"},
    "storage/common/child_process.py": {"pickle.loads": "an error that was pickled in the same line"},
    "storage/common/child_connection.py": {"subprocess.Popen": "a process of a command, by python_command"},
    "storage/common/own_modules.py": {"importlib.import_module": "a module that the user named, or that --trust names"},
    "storage/testing.py": {"pickle.loads": "a store that was pickled in the same line"},
    "train/loop/processes.py": {"pickle.loads": "a job that the command which started this process sends"},
    "train/search/caption_terms.py": {"import_module": "snowballstemmer's languages, from a table in the same file"},
    "storage/hub/loading.py": {
        "AutoModel.from_config": "the wrapper itself",
        "AutoModel.from_pretrained": "the wrapper itself",
        "PreTrainedTokenizerFast.from_pretrained": "the wrapper itself",
        "classes.get(kind, AutoTokenizer).from_pretrained": "the wrapper itself",
    },
}
"""{file: {function: why it may be called there}}"""


def is_watched(name: str) -> bool:
    first, _, rest = name.partition(".")
    return name.rpartition(".")[2] in METHODS or rest in FUNCTIONS.get(first, ()) or name in FUNCTIONS[""]


def is_safe(call: ast.Call) -> bool:
    argument, value = SAFE.get(ast.unparse(call.func), ("", None))
    return any(
        k.arg == argument and isinstance(k.value, ast.Constant) and k.value.value is value for k in call.keywords
    )


def watched(text: str) -> set[str]:
    """Return the watched functions that a module calls, and imports that would hide such calls."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and is_watched(name := ast.unparse(node.func)) and not is_safe(node):
            found.add(name)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = {alias.name for alias in node.names}
            found |= {f"from {node.module} import {name}" for name in names & _functions(node.module)}
        elif isinstance(node, ast.Import):
            renamed = {a.name: a.asname or a.name for a in node.names if a.name in MODULES}
            found |= {f"import {name} as {own}" for name, own in renamed.items() if own != MODULES[name]}
    return found


def _functions(module: str | None) -> set[str]:
    first, _, rest = (module or "").partition(".")
    of_module = FUNCTIONS.get(MODULES.get(first, first), set())
    inner = {name.removeprefix(f"{rest}.") for name in of_module if name.startswith(f"{rest}.")} if rest else of_module
    return inner | (METHODS - {"import_module"})


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TOP)))
def test_only_named_places_load_by_name_or_start_programs(path):
    assert watched(path.read_text(encoding="utf-8")) == set(ALLOWED.get(str(path.relative_to(TOP).as_posix()), ()))


@pytest.mark.parametrize(
    "line",
    [
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=chosen)",
        "np.load(path, allow_pickle=True)",
        "np.load(path)",
        "torch.hub.load('a/b', 'c')",
        "AutoConfig.from_pretrained(folder, trust_remote_code=False)",
        "transformers.AutoModel.from_config(config)",
        "Tokenizer.from_file(path)",
        "timm.create_model(name)",
        "faiss.read_index(path)",
        "yaml.load(text, Loader)",
        "exec(text)",
        "__import__(name)",
        "os.execvp(name, words)",
        "os.system(words)",
        "subprocess.run(words)",
        "from subprocess import run",
        "from pickle import loads as read",
        "from numpy import load",
        "from torch.hub import load",
        "from timm import create_model",
        "import pickle as parts",
    ],
)
def test_such_calls_are_noticed(line):
    assert watched(line)


@pytest.mark.parametrize(
    "line",
    ["torch.load(path, weights_only=True)", "np.load(path, allow_pickle=False)", "json.load(file)", "model.eval()"],
)
def test_other_calls_are_none(line):
    assert not watched(line)
