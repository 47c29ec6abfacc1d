"""Parts of one's own come from their module by name; what a file names is imported only if the user trusts it."""

import contextlib
import hashlib
import importlib
import importlib.util
import os
import py_compile
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from vlalign.storage.common import plugins
from vlalign.storage.common.errors import SettingError, UserError
from vlalign.storage.common.plugins import (
    is_plugin_name,
    load_plugin,
    loaded_plugin,
    loaded_plugins,
    plugin_names,
    trust_modules,
    trusted_plugin,
)


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch):
    """Forget what other tests loaded, and restore modules and import path."""
    monkeypatch.setattr(plugins, "_LOADED", {})
    monkeypatch.setattr(plugins, "_SHA256", {})
    monkeypatch.setattr(plugins, "_TRUSTED", set())
    before, path = set(sys.modules), list(sys.path)
    yield
    assert sys.path == path  # a folder is on it only during an import
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


MARKING = "open({!r}, 'w').close()\nclass Thing: pass\n"


def test_a_class_comes_from_a_module_in_the_current_folder(here):
    path = write(here / "own_thing.py", "class Thing:\n    size = 3\n")
    plugin = load_plugin("objectives", "own_thing:Thing")
    assert plugin.value.size == 3
    assert (plugin.text, plugin.module) == ("own_thing:Thing", "own_thing")
    assert plugin.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert Path(plugin.folder) == here
    assert load_plugin("objectives", "own_thing:Thing") is plugin is loaded_plugin("objectives", "own_thing:Thing")
    assert loaded_plugins("objectives") == [plugin]
    assert loaded_plugins("encoders") == []


def test_a_class_itself_is_known_by_its_module_and_name(here):
    write(here / "own_thing.py", "class Thing: pass\n")
    by_name = load_plugin("objectives", "own_thing:Thing")
    by_class = load_plugin("encoders", by_name.value)
    assert (by_class.text, by_class.sha256) == (by_name.text, by_name.sha256)


def test_an_installed_module_comes_before_one_of_the_current_folder(here):
    write(here / "json.py", "raise RuntimeError('planted')\n")
    write(here / "own_thing.py", "import json\nclass Thing:\n    read = json.loads\n")
    assert load_plugin("objectives", "own_thing:Thing").value.read("[3]") == [3]


def test_the_checksum_of_a_package_is_that_of_all_its_files(here):
    write(here / "own_package" / "__init__.py", "")
    write(here / "own_package" / "losses" / "__init__.py", "")
    write(here / "own_package" / "losses" / "mine.py", "from ..helpers import X as Thing\n")
    helpers = write(here / "own_package" / "helpers.py", "class X: pass\n")
    first = load_plugin("objectives", "own_package.losses.mine:Thing")
    assert Path(first.folder) == here
    helpers.write_text("class X:\n    changed = True\n", encoding="utf-8")
    again = load_plugin("encoders", "own_package.losses.mine:Thing")
    assert again.sha256 == first.sha256  # what was imported still runs
    code = "from vlalign.storage.common.plugins import load_plugin as l; print(l('objectives', {!r}).sha256)"
    command = [sys.executable, "-c", code.format(first.text)]
    output = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True).stdout
    assert output.strip() != first.sha256
    assert len(output.strip()) == 64


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("own_missing:Thing", ["own_missing", "no module"]),
        ("own_package.missing:Thing", ["own_package.missing", "no module"]),
        ("own_thing:Other", ["own_thing", "Other", "Thing"]),
        ("own_needs:Thing", ["own_needs", "own_absent"]),
        ("own_broken:Thing", ["own_broken", "ZeroDivisionError", "line 2"]),
        ("__main__:Thing", ["__main__"]),
        ("nameless", ["nameless", "MODULE:NAME"]),
        ("own_thing:", ["MODULE:NAME"]),
        ("../own_thing:Thing", ["MODULE:NAME"]),
    ],
)
def test_a_part_that_cannot_be_loaded_is_one_line_that_names_it(here, text, words):
    write(here / "own_package" / "__init__.py", "")
    write(here / "own_thing.py", "class Thing: pass\n")
    write(here / "own_needs.py", "import own_absent\n")
    write(here / "own_broken.py", "\n1 / 0\n")
    with pytest.raises(UserError) as raised:
        load_plugin("objectives", text)
    message = str(raised.value)
    assert "\n" not in message
    assert all(word in message for word in ["objective", *words]), message


def test_what_a_file_names_is_imported_only_if_its_module_is_trusted(here):
    mark = here / "mark"
    write(here / "own_marking.py", MARKING.format(str(mark)))
    for trusted in ((), ("own_other",), ("own",), ("own_marking:Thing",)):
        with pytest.raises(SettingError) as raised:
            trusted_plugin("objectives", "own_marking:Thing", trusted, here / "run.json")
        assert raised.value.setting == "trust"
        assert str(here / "run.json") in str(raised.value)
        assert "--trust own_marking" in str(raised.value)
    assert not mark.exists()
    assert trusted_plugin("objectives", "own_marking:Thing", ["own_marking"], "run.json").value.__name__ == "Thing"
    assert mark.exists()


@pytest.mark.parametrize("trust", ["own_marking", "own_marking_and_more", [Path("own_marking")]])
def test_trust_is_a_list_of_texts(here, trust):
    mark = here / "mark"
    write(here / "own_marking.py", MARKING.format(str(mark)))
    for call in (trust_modules, lambda trust: trusted_plugin("objectives", "own_marking:Thing", trust, "run.json")):
        with pytest.raises(SettingError) as raised:
            call(trust)
        assert (raised.value.setting, "list" in raised.value.problem) == ("trust", True)
    assert not mark.exists() and not plugins._TRUSTED


def test_what_the_user_named_needs_no_trust_afterwards(here):
    write(here / "own_thing.py", "class Thing: pass\nclass Other: pass\n")
    plugin = load_plugin("objectives", "own_thing:Thing")
    assert trusted_plugin("objectives", "own_thing:Thing", (), "run.json") is plugin
    with pytest.raises(SettingError):
        trusted_plugin("objectives", "own_thing:Other", (), "run.json")


@contextlib.contextmanager
def on_path(*folders: Path):
    """Let modules be imported from folders during the block."""
    sys.path[:0] = map(str, folders)
    try:
        yield
    finally:
        for folder in folders:
            sys.path.remove(str(folder))


def install(folder: Path, package: str, *rows: str) -> None:
    """Write what pip writes of a package that has entry points."""
    write(folder / f"{package}-1.dist-info" / "METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    (folder / f"{package}-1.dist-info" / "entry_points.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")


def test_an_entry_point_is_listed_without_an_import_and_loaded_by_its_name(here, monkeypatch):
    site, mark = here / "site", here / "mark"
    install(
        site, "cool", "[vlalign.objectives]", "cool-loss = own_cool:Thing", "[vlalign.tasks]", "count = own_cool:Count"
    )
    write(site / "own_cool.py", MARKING.format(str(mark)))
    sys.path.append(str(site))
    try:
        assert plugin_names("objectives") == ["cool-loss"]
        assert plugin_names("tasks") == ["count"]
        with pytest.raises(SettingError) as raised:
            trusted_plugin("objectives", "cool-loss", (), "run.json")
        assert "own_cool" in str(raised.value)
        with pytest.raises(UserError) as missing:
            load_plugin("objectives", "cool-los")
        assert "cool-loss" in str(missing.value)
        assert not mark.exists()
        plugin = load_plugin("objectives", "cool-loss")
        assert (plugin.text, plugin.module, plugin.value.__name__) == ("cool-loss", "own_cool", "Thing")
        install(site, "cooler", "[vlalign.objectives]", "cool-loss = own_cooler:Thing")
        importlib.invalidate_caches()
        monkeypatch.setattr(plugins, "_LOADED", {})
        with pytest.raises(UserError) as several:
            load_plugin("objectives", "cool-loss")
        assert all(name in str(several.value) for name in ("own_cool:Thing", "own_cooler:Thing"))
    finally:
        sys.path.remove(str(site))


def test_another_process_finds_a_part_by_its_folder(here):
    write(here / "parts" / "own_thing.py", "class Thing: pass\n")
    plugin = load_plugin("objectives", "own_thing:Thing", here / "parts")
    arguments = f"'objectives', {plugin.text!r}, {plugin.folder!r}"
    code = f"from vlalign.storage.common.plugins import load_plugin; load_plugin({arguments})"
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", code], cwd=here.parent, check=True, env=environment)


def test_names_have_one_form():
    assert is_plugin_name("my_module:MyThing")
    assert is_plugin_name("my_package.losses:my_thing")
    assert not any(map(is_plugin_name, ("taco", "my_module", "a:b:c", "/a:b", ":b", "a:", "a.:b", "a b:c", "1a:b")))


OPTIONAL = """
try:
    import own_optional
except ImportError:
    own_optional = None
class Thing: pass
"""
"""A module that tries another one, as torch tries pynvml."""


def test_an_installed_module_takes_no_module_from_the_current_folder(tmp_path, monkeypatch):
    """Not what it or a library tries to import, at once or later, nor an entry point."""
    lib, stranger, mark = tmp_path / "lib", tmp_path / "stranger", tmp_path / "mark"
    later = "\ndef late():\n    import own_optional\n"
    points = "\nimport importlib.metadata\nPOINTS = importlib.metadata.entry_points(group='own')\n"
    write(lib / "own_installed.py", OPTIONAL + points + later)
    write(stranger / "own_optional.py", f"open({str(mark)!r}, 'w').close()\n")
    install(stranger, "evil", "[own]", "evil = own_optional:Thing")
    monkeypatch.chdir(stranger)
    with on_path(lib):
        module = sys.modules[load_plugin("encoders", "own_installed:Thing").module]
        assert list(module.POINTS) == []
        with pytest.raises(ModuleNotFoundError):
            module.late()
    assert not mark.exists()


def test_a_library_takes_nothing_from_the_folder_of_a_module(tmp_path, monkeypatch):
    """The module lies there itself; what is beside it is imported for that module only."""
    lib, here = tmp_path / "lib", tmp_path / "here"
    write(lib / "own_library.py", OPTIONAL)
    write(here / "own_optional.py", "")
    write(here / "own_beside.py", "import own_further\n")
    write(here / "own_further.py", "")
    write(here / "own_package" / "__init__.py", "")
    write(here / "own_package" / "inner.py", "import own_beside\n")
    late = "    def late(self):\n        import own_package.inner\n        return own_package.inner.own_beside\n"
    write(here / "own_thing.py", f"import own_library\nclass Thing:\n{late}")
    monkeypatch.chdir(here)
    with on_path(lib):
        thing = load_plugin("encoders", "own_thing:Thing").value
    assert sys.modules["own_library"].own_optional is None
    assert thing().late().own_further.__file__ == str(here / "own_further.py")


def test_a_missing_module_of_an_entry_point_is_not_taken_from_the_current_folder(here):
    install(here / "site", "cool", "[vlalign.objectives]", "cool-loss = own_cool:Thing")
    write(here / "own_cool.py", MARKING.format(str(here / "mark")))
    with on_path(here / "site"), pytest.raises(UserError, match="own_cool"):
        load_plugin("objectives", "cool-loss")
    assert not (here / "mark").exists()


def poison(source: Path) -> None:
    """Put other code beside a source, which Python takes for its own: it compares neither times nor contents."""
    other = write(source.parent / "other.txt", "class Thing:\n    poisoned = True\n")
    cached = importlib.util.cache_from_source(str(source))
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(other), cached, str(source), doraise=True, invalidation_mode=mode)


@pytest.mark.parametrize("is_installed", [False, True])
@pytest.mark.parametrize("name", ["own_thing", "own_package", "own_package.inner"])
def test_the_code_that_runs_is_the_code_that_is_recorded(tmp_path, monkeypatch, name, is_installed):
    lib, elsewhere = tmp_path / "lib", tmp_path / "elsewhere"
    elsewhere.mkdir()
    paths = [lib / "own_thing.py", lib / "own_package" / "__init__.py", lib / "own_package" / "inner.py"]
    for path in paths:
        write(path, "class Thing: pass\n")
        poison(path)
    monkeypatch.chdir(elsewhere if is_installed else lib)
    with on_path(*[lib] if is_installed else []):
        assert not hasattr(load_plugin("objectives", f"{name}:Thing").value, "poisoned")


def test_the_checksum_is_of_the_code_that_was_compiled_not_of_an_edit_meanwhile(here):
    path = here / "own_thing.py"
    source = f"class Thing: pass\nopen({str(path)!r}, 'a').write('edited = True')\n"
    write(path, source)
    assert load_plugin("objectives", "own_thing:Thing").sha256 == hashlib.sha256(source.encode()).hexdigest()
    assert path.read_text() != source


@pytest.mark.parametrize("body", ["raise SystemExit(3)", "def __getattr__(name): raise SystemExit(3)"])
def test_a_module_that_ends_the_program_is_one_line(here, body):
    write(here / "own_exit.py", body + "\n")
    with pytest.raises(UserError) as raised:
        load_plugin("objectives", "own_exit:Thing")
    assert all(word in str(raised.value) for word in ("own_exit", "SystemExit 3", "line 1"))


@pytest.mark.parametrize("text", ["x" * 5_000_000 + ":Thing", "own_thing:" + "x" * 5_000_000, "x\nnote: done" * 9])
def test_a_name_of_a_file_is_one_short_line(here, text):
    write(here / "own_thing.py", "class Thing: pass\n")
    with pytest.raises(UserError) as raised:
        trusted_plugin("objectives", text, ["own_thing"], "run.json")
    assert len(str(raised.value)) < 2500
    assert "\n" not in str(raised.value)
