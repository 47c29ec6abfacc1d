"""Options of all commands: short and whole help, files with options, versions, completion."""

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from helpers.needs import SYSTEM, need
from vlalign.storage.cli.command import run_command
from vlalign.storage.cli.parser import OwnPart, add_setting, add_stores, add_trust, command_parser, given_settings
from vlalign.storage.common.errors import SettingError
from vlalign.storage.common.settings import Settings, names_of_options, setting

pytestmark = pytest.mark.portable

TEXTS = {
    "yaml": "dataset: demo\nnum-steps: 3\nfeatures: [s3d, i3d]\nname: [a, b]\nfast: true\nslow: false\nboth: [x, y]\n",
    "toml": 'dataset = "demo"\nnum_steps = 3\nfeatures = ["s3d", "i3d"]\nname = ["a", "b"]\nfast = true\nslow = false\n'
    'both = ["x", "y"]\n',
}


@pytest.fixture
def parser():
    parser = command_parser("vlalign-test", "Do something.", "vlalign-test --dataset demo")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--features")
    parser.add_argument("--name", action="append", default=[])
    parser.add_argument("--both", nargs=2)
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--fast", action=argparse.BooleanOptionalAction, default=None)
    group = parser.add_argument_group("rare things", "which few need")
    parser.hide_from_short_help([group.add_argument("--num-steps", type=int, help="steps of the work")])
    return parser


def refused(parser, capsys, *arguments):
    """Return the one line that the parser says when it refuses arguments."""
    with pytest.raises(SystemExit) as ended:
        parser.parse_args([str(argument) for argument in arguments])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    return line


def printed(parser, capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        parser.parse_args([str(argument) for argument in arguments])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_rare_options_stand_in_the_whole_help_only(parser, capsys):
    short, whole = printed(parser, capsys, "--help"), printed(parser, capsys, "--help-all")
    assert short.startswith("usage: vlalign-test [NAME ...] [OPTIONS]\n\nDo something.\n")
    assert "--num-steps" not in short and "rare things" not in short and "--config" not in short
    assert "--num-steps" in whole and "rare things" in whole and "--config FILE" in whole
    hidden = set(re.findall(r"--[a-z][a-z-]*", whole)) - set(re.findall(r"--[a-z][a-z-]*", short)) - {"--no-fast"}
    assert f"{len(hidden) + 1} more options: vlalign-test --help-all" in short  # --help-all itself is named there


def test_a_long_description_is_broken_into_lines_and_an_example_is_not(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    example = "vlalign-test " + " ".join(f"--option{n} value" for n in range(9))
    shown = printed(command_parser("vlalign-test", "Do what takes many words. " * 9, example), capsys, "--help")
    description, rest = shown.split("\n\n", 2)[1:]
    assert all(len(line) <= 60 for line in description.splitlines()) and len(description.splitlines()) > 3
    assert f"\n  {example}\n" in rest


def test_names_with_hyphens_stay_whole_in_the_help(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    parser = command_parser("vlalign-test", "Do something.", "vlalign-test --dataset demo")
    names = [f"recipe-number-{n}-small" for n in range(9)]
    parser.add_argument("--recipe", help=f"one of {', '.join(names)}")
    shown = printed(parser, capsys, "--help")
    assert all(name in shown for name in names) and all(len(line) <= 60 for line in shown.splitlines())


def test_arguments_that_may_be_left_out_stand_in_brackets(capsys):
    parser = command_parser("vlalign-test", "Do something.", "vlalign-test --dataset demo")
    parser.intermixed = True
    for name in ("RUN", "TEXT"):
        parser.add_argument(name.lower(), metavar=name, nargs="?")
    assert printed(parser, capsys, "--help").startswith("usage: vlalign-test [RUN] [TEXT] [OPTIONS]\n")


@pytest.mark.parametrize(
    "arguments", [["--", "-w"], ["--root", "r", "--", "-w", "--json"], ["a", "--root", "r", "--", "-w"]]
)
def test_names_with_a_dash_may_be_the_only_ones(arguments):
    parser = command_parser("vlalign-test", "Do something.", "vlalign-test a -- -b")
    parser.intermixed = True
    parser.add_argument("names", nargs="*")
    names = [name for name in arguments if name in ("a", "-w", "--json")]
    assert parser.parse_args(arguments).names == names


def test_a_word_too_many_is_not_taken_for_an_id_with_a_dash(capsys):
    parser = command_parser("vlalign-test", "Do something.", "vlalign-test --dataset demo")
    assert refused(parser, capsys, "list") == "vlalign-test: error: unknown: list; see vlalign-test --help"


@pytest.mark.parametrize("kind", TEXTS)
def test_a_file_has_options_by_name_and_the_command_line_wins(tmp_path, parser, kind):
    if kind == "toml" and sys.version_info < (3, 11):
        need(SYSTEM, ["Python 3.11, which reads TOML"])
    path = tmp_path / f"options.{kind}"
    path.write_text(TEXTS[kind])
    parsed = parser.parse_args(["--config", str(path)])
    assert (parsed.dataset, parsed.num_steps, parsed.features, parsed.fast) == ("demo", 3, "s3d,i3d", True)
    assert (parsed.name, parsed.both, parsed.slow, parsed.names) == (["a", "b"], ["x", "y"], False, [])
    parsed = parser.parse_args(["n", f"--config={path}", "--num-steps=4", "--name", "c", "--no-fast"])
    assert (parsed.num_steps, parsed.name, parsed.fast, parsed.names) == (4, ["c"], False, ["n"])
    assert parsed.dataset == "demo"


def test_printed_options_read_as_the_same_options(tmp_path, parser, capsys):
    given = ["--dataset", "d", "--num-steps", "3", "--name=-a", "--name", "b: c", "--slow", "--both", "x", "ü"]
    text = printed(parser, capsys, *given, "--print-config")
    (tmp_path / "options.yml").write_text(text)
    read, direct = parser.parse_args(["--config", str(tmp_path / "options.yml")]), parser.parse_args(given)
    assert {**vars(read), "config": None} == vars(direct)


@pytest.mark.parametrize(
    ("text", "line", "parts"),
    [
        ("fast: true\nnum-stesp: 3", 2, ["'num-stesp'", "num-steps"]),
        ("config: x.yaml", 1, ["'config'"]),
        ("# names\n\nnames: [a]", 3, ["'names'"]),
        ("fast: 1", 1, ["fast: ", "1"]),
        ("slow: true\nfeatures: true", 2, ["features: ", "True"]),
        ("features: {a: 1}", 1, ["features: ", "{'a': 1}"]),
        ("slow: true\nnum-steps:\n  many", 2, ["--num-steps", "'many'"]),
        ("slow: true\nnum-steps: 3.5", 2, ["--num-steps", "'3.5'"]),
        ("slow: true\nboth: [a]", 2, ["--both"]),
        ("num-steps: 3\nslow: true\nnum_steps: 4", 3, ["num-steps", "line 1"]),
        ("slow: true\n<<: {num-steps: many}", 2, ["--num-steps", "'many'"]),
        ("\n[1, 2]", 2, []),
        ("slow: true\na: [", 2, ["ParserError"]),
        ("slow: true\na: \x07", 2, ["ReaderError"]),
        ("slow: true\na: !!python/object/apply:os.system [x]", 2, ["ConstructorError"]),
    ],
)
def test_a_mistake_in_a_yaml_file_names_file_and_line(tmp_path, parser, capsys, text, line, parts):
    path = tmp_path / "options.yaml"
    path.write_text(text)
    error = refused(parser, capsys, "--config", path)
    assert f"{path}, line {line}: " in error and all(part in error for part in parts), error


@pytest.mark.parametrize(
    ("text", "line", "parts"),
    [
        ("fast = true\nnum-stesp = 3", 2, ["'num-stesp'", "num-steps"]),
        ("slow = true\n[names]\na = 1", 2, ["'names'"]),
        ("fast = 1", 1, ["fast: ", "1"]),
        ("slow = true\nfeatures.a = 1", 2, ["features: ", "{'a': 1}"]),
        ('slow = true\n"num-steps" = "many"', 2, ["--num-steps", "'many'"]),
        ('features = """\nnum-steps = 3\n"""\nnum-steps = "many"', 4, ["--num-steps", "'many'"]),
        ("name = [\n  'a',\n]\nnum-steps = 3\nnum_steps = 4", 5, ["num-steps", "line 4"]),
        ("slow = true\nslow = false", 2, ["TOML"]),
        ("slow = true\na = [", 2, ["TOML"]),
    ],
)
def test_a_mistake_in_a_toml_file_names_file_and_line(tmp_path, parser, capsys, text, line, parts):
    if sys.version_info < (3, 11):
        need(SYSTEM, ["Python 3.11, which reads TOML"])
    path = tmp_path / "options.toml"
    path.write_text(text)
    error = refused(parser, capsys, "--config", path)
    assert f"{path}, line {line}: " in error and all(part in error for part in parts), error


def test_a_value_that_the_command_refuses_names_file_and_line_if_the_file_gave_it(tmp_path, parser, capsys):
    def command(args):
        raise SettingError("num_steps", args.num_steps, "expected 1 or more")

    path = tmp_path / "options.yaml"
    path.write_text("slow: true\nnum-steps: 0\n")
    assert run_command(command, parser, ["--config", str(path)]) == 2
    assert f"{path}, line 2: --num-steps 0: " in capsys.readouterr().err
    assert run_command(command, parser, ["--config", str(path), "--num-steps", "-1"]) == 2
    line = capsys.readouterr().err
    assert "--num-steps -1: " in line and "options.yaml" not in line


ONLY_TYPED_TEXTS = {"allow-folder": "[/etc]", "stores": "a:B", "trust": "[a]", "allow_folder": "/etc"}


@pytest.mark.parametrize(("name", "value"), ONLY_TYPED_TEXTS.items())
def test_no_file_permits_or_imports_anything(tmp_path, parser, capsys, name, value):
    add_stores(parser)
    add_trust(parser)
    (tmp_path / "options.yaml").write_text(f"slow: true\n{name}: {value}\n")
    line = refused(parser, capsys, "--dataset", "d", "--config", tmp_path / "options.yaml")
    option = name.replace("_", "-")
    assert f"options.yaml, line 2: {option}: " in line and f"--{option} " in line
    (tmp_path / "options.yaml").write_text("slow: true\nallow-folder: []\nstores:\n")  # as --print-config wrote them
    assert parser.parse_args(["--config", str(tmp_path / "options.yaml")]).slow


def test_what_must_be_typed_is_printed_as_a_comment(tmp_path, parser, capsys):
    add_stores(parser)
    given = ["--slow", "--stores", "a:B", "--allow-folder", "x\ny: 1"]
    text = printed(parser, capsys, *given, "--print-config")
    assert "# stores: a:B\n" in text and "y: 1" in text.replace("\\n", "")
    (tmp_path / "options.yaml").write_text(text)
    parsed = parser.parse_args(["--config", str(tmp_path / "options.yaml")])
    assert (parsed.slow, parsed.stores, parsed.allow_folder) == (True, None, [])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("both: [x, --slow]", "'--slow'"),
        ("both: [--slow, x]", "'--slow'"),
        ("both: [x, -y]", "'-y'"),
        ("both: [x, '@options.txt']", "'@options.txt'"),
        ("both: [x, '--name=a b']", "'--name=a b'"),
        ("many: [x, --, y]", "'--'"),
    ],
)
def test_no_value_of_a_file_is_taken_for_an_option(tmp_path, parser, capsys, text, named):
    parser.add_argument("--many", nargs="+")
    parser.fromfile_prefix_chars = "@"
    (tmp_path / "options.yaml").write_text(text)
    line = refused(parser, capsys, "--config", tmp_path / "options.yaml")
    assert "options.yaml, line 1: " in line and named in line


def test_values_of_a_file_that_begin_with_a_dash_stay_values(tmp_path, parser):
    parser.add_argument("--many", nargs="+", type=float)
    lines = ["features: --slow", "name: [-a, --slow, --name=b, '@x']", "num-steps: -3", "many: [-1, -0.5, 2]"]
    (tmp_path / "options.yaml").write_text("\n".join(lines))
    parsed = parser.parse_args(["--config", str(tmp_path / "options.yaml"), "--both", "x", "-1"])
    assert (parsed.features, parsed.name) == ("--slow", ["-a", "--slow", "--name=b", "@x"])
    assert (parsed.num_steps, parsed.many, parsed.both, parsed.slow) == (-3, [-1, -0.5, 2], ["x", "-1"], False)


def test_the_last_list_of_a_file_takes_nothing_that_is_typed(tmp_path, parser):
    parser.add_argument("--many", nargs="+")
    (tmp_path / "options.yaml").write_text("many: [a, b]")
    parsed = parser.parse_args(["typed", "--config", str(tmp_path / "options.yaml")])
    assert (parsed.many, parsed.names) == (["a", "b"], ["typed"])


def test_a_part_of_ones_own_in_a_file_is_judged_as_the_text_that_the_option_gets(tmp_path, parser, capsys):
    add_trust(parser)
    parser.own_parts = {"features": OwnPart("tasks", ["ours:Task"]), "name": OwnPart("metrics")}
    path = tmp_path / "options.yaml"
    for text in ("features: a:B", "features: [a:B]", "name: a:B", "name: [plain, a:B]", "<<: {features: [a:B]}"):
        path.write_text(text)
        assert "--trust a," in refused(parser, capsys, "--config", path), text
        assert parser.parse_args(["--config", str(path), "--trust", "a"]).config == path
    path.write_text("features: ours:Task")
    assert parser.parse_args(["--config", str(path)]).features == "ours:Task"
    assert parser.parse_args(["--features", "a:B"]).features == "a:B"


def test_a_mistake_on_the_command_line_does_not_name_the_file(tmp_path, parser, capsys):
    (tmp_path / "options.yaml").write_text("num-steps: many\n")
    line = refused(parser, capsys, "--config", tmp_path / "options.yaml", "--num-steps", "few")
    assert "'few'" in line and "options.yaml" not in line


def test_other_files_are_refused_in_one_line(tmp_path, parser, capsys):
    assert "x.json" in refused(parser, capsys, "--config", tmp_path / "x.json")
    assert "x.yaml" in refused(parser, capsys, "--config", tmp_path / "x.yaml")
    (tmp_path / "x.yaml").write_bytes(b"slow: true\n\xff")
    assert "x.yaml, line 2: " in refused(parser, capsys, "--config", tmp_path / "x.yaml")
    (tmp_path / "x.yaml").write_text("#" * (1 << 21))
    assert "65,536" in refused(parser, capsys, "--config", tmp_path / "x.yaml")


def test_ids_that_look_like_options(parser, capsys):
    assert " -- " in refused(parser, capsys, "-abc")
    assert parser.parse_args(["--slow", "--", "-abc", "--x"]).names == ["-abc", "--x"]


def test_the_version_goes_to_standard_output(parser, capsys):
    assert re.fullmatch(r"vlalign-test \d+\.\d+\.\d+\n", printed(parser, capsys, "--version"))


def test_bash_completes_options(tmp_path, parser, capsys):
    (tmp_path / "completion").write_text(printed(parser, capsys, "--print-completion", "bash"))
    script = (
        f"source {tmp_path / 'completion'}; COMP_WORDS=(vlalign-test --num); COMP_CWORD=1; "
        "_shtab_vlalign_test; echo ${COMPREPLY[@]}"
    )
    completed = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert completed.stdout.split() == ["--num-steps"]


@dataclass(frozen=True, kw_only=True)
class Oven(Settings):
    heat: str = setting("low", "how hot", choices={"low": "", "high": "for bread"})
    minutes: int = setting(5, "how long", ge=1)
    racks: Sequence[str] = setting((), "which racks", metavar="RACK")
    fan: bool = setting(False, "with the fan")
    grill: int | None = None


def test_options_come_from_the_declaration_of_settings(tmp_path, capsys):
    parser = command_parser("vlalign-test", "Bake.", "vlalign-test --dataset demo")
    for name in names_of_options(Oven):
        add_setting(parser, Oven, name)
    assert Oven(**given_settings(parser.parse_args([]), Oven)) == Oven(racks=[])
    args = parser.parse_args(["--heat", "high", "--minutes", "7", "--racks", "a", "--racks", "b", "--fan"])
    assert Oven(**given_settings(args, Oven)) == Oven(heat="high", minutes=7, racks=["a", "b"], fan=True)
    shown = " ".join(printed(parser, capsys, "--help").split())
    assert "--heat {low,high} how hot. high: for bread (default: low)" in shown and "--racks RACK" in shown
    assert "--grill" not in shown
    assert "low high" in printed(parser, capsys, "--print-completion", "bash").replace('"', " ").replace("'", " ")


def test_a_value_out_of_range_in_a_file_is_refused_by_the_settings_with_file_and_line(tmp_path, capsys):
    parser = command_parser("vlalign-test", "Bake.", "vlalign-test --dataset demo")
    for name in names_of_options(Oven):
        add_setting(parser, Oven, name)

    def command(args):
        Oven(**given_settings(args, Oven))
        return 0

    for line, named in (("minutes: 0", "--minutes 0: "), ("heat: off", "heat: "), ("heat: warm", "--heat warm: ")):
        (tmp_path / "options.yaml").write_text(f"fan: true\n{line}\n")
        try:
            code = run_command(command, parser, ["--config", str(tmp_path / "options.yaml")])
        except SystemExit as ended:  # "off" is no text in YAML
            code = ended.code
        error = capsys.readouterr().err
        assert code == 2 and f"{tmp_path / 'options.yaml'}, line 2: {named}" in error
