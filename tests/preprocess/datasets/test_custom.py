"""A user's own captions: what is understood is reported, what is not is refused or named, and nothing is silent."""

import pytest
from helpers.captions import call, caption_file
from vlalign.preprocess.datasets import custom
from vlalign.storage import Caption
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems

ROWS = [
    {"video_id": "v1", "caption": "a man cooks, slowly", "start_seconds": 0.5, "end_seconds": 2, "split": "train"},
    {
        "video_id": "v1",
        "caption": "ein Mädchen\nläuft 😀",
        "start_seconds": "",
        "end_seconds": "",
        "split": "validation",
    },
    {"video_id": " v2 ", "caption": ' "quoted" ', "start_seconds": "3", "end_seconds": "1e1", "split": "test"},
]


@pytest.mark.parametrize("mark", [False, True], ids=["", "byte order mark"])
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_captions_are_read_from_csv_and_jsonl(tmp_path, kind, mark):
    problems = Problems()
    assert list(custom.read(caption_file(tmp_path, ROWS, kind, mark=mark), 0, problems)) == [
        Caption(video_id="v1", caption="a man cooks, slowly", split="train", start_seconds=0.5, end_seconds=2.0),
        Caption(video_id="v1", caption="ein Mädchen\nläuft 😀", split="validation"),
        Caption(video_id="v2", caption='"quoted"', split="test", start_seconds=3.0, end_seconds=10.0),
    ]
    assert problems.count == 0


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        pytest.param(
            "c.csv",
            "video_id,txet\nv,a\n",
            [" caption;", "'txet' (nearest known: caption), 'video_id'"],
            id="a CSV without captions",
        ),
        pytest.param(
            "c.csv",
            "v1,a man\nv2,a dog\n",
            [" video_id ", " caption;", "'a man', 'v1'"],
            id="no header",
        ),
        pytest.param("c.jsonl", '{"caption": "a"}\n', [" video_id;", "'caption'"], id="a JSONL without ids"),
        pytest.param("c.csv", "", ["video_id, caption"], id="an empty file"),
        pytest.param("c.csv", "video_id,caption\n", ["video_id, caption"], id="only a header"),
        pytest.param("c.jsonl", '{"video_id": "v"\n', ["line 1: ", " JSON "], id="bad JSON"),
        pytest.param(
            "c.pdf",
            "video_id,caption\nv,a\n",
            [".csv, .tsv, .txt, .jsonl or .parquet"],
            id="another kind",
        ),
    ],
)
def test_unreadable_files_are_rejected(tmp_path, name, content, named):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as refused:
        list(custom.read(path, 0, Problems()))
    message = str(refused.value)
    assert message.startswith(str(path)) and all(each in message for each in named) and "\n" not in message, message


GOOD = {"video_id": "v1", "caption": "a man cooks", "start_seconds": 1, "end_seconds": 2, "split": "train"}


BAD = {
    "empty caption": ({"caption": ""}, "caption is ''"),
    "blank caption": ({"caption": "  "}, "caption is '"),
    "empty id": ({"video_id": ""}, "video_id is ''"),
    "end before start": ({"start_seconds": 5, "end_seconds": 4}, "5.0 to 4.0 s"),
    "end at start": ({"start_seconds": 5, "end_seconds": 5}, "5.0 to 5.0 s"),
    "start below 0": ({"start_seconds": -1}, "-1.0 to 2.0 s"),
    "start no number": ({"start_seconds": "1:75"}, "start_seconds is '1:75'"),
    "end no number": ({"end_seconds": "soon"}, "end_seconds is 'soon'"),
    "end infinite": ({"end_seconds": "inf"}, "end_seconds is 'inf'"),
    "no end": ({"end_seconds": ""}, " 1.0 and end None: "),
    "no start": ({"start_seconds": ""}, " None and end 2.0: "),
    "unknown split": ({"split": "held"}, "split is 'held'"),
}


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_every_unusable_row_is_one_warning_with_its_line(tmp_path, capsys, kind):
    rows = [GOOD]
    for change, _ in BAD.values():
        rows += [GOOD | change, GOOD]
    path = caption_file(tmp_path, rows, kind)
    problems = Problems()
    captions = list(custom.read(path, 0, problems))
    warnings = capsys.readouterr().err.splitlines()
    assert problems.count == len(warnings) == len(BAD)
    for number, (warning, (_, value)) in enumerate(zip(warnings, BAD.values(), strict=True)):
        line = 2 * number + (3 if kind == "csv" else 2)
        assert warning.startswith(f"warning: {path}, line {line}: ") and value in warning
    assert len(captions) == len(BAD) + 1
    assert {(c.video_id, c.caption, c.start_seconds, c.end_seconds, c.split) for c in captions} == {
        ("v1", "a man cooks", 1.0, 2.0, "train")
    }


@pytest.mark.parametrize(
    ("kind", "text", "line"),
    [
        pytest.param("jsonl", '{"video_id": 7, "caption": "a"}', 1, id="an id that is a number"),
        pytest.param("jsonl", '{"video_id": "v", "caption": ["a"]}', 1, id="a caption that is a list"),
        pytest.param("jsonl", '{"video_id": "v", "caption": null}', 1, id="a caption that is null"),
        pytest.param(
            "jsonl",
            '{"video_id": "v", "caption": "a", "start_seconds": [], "end_seconds": {}}',
            1,
            id="times that are lists",
        ),
        pytest.param("jsonl", '{"video_id": "v", "caption": "a", "start_seconds": 0, "end_seconds": NaN}', 1, id="NaN"),
        pytest.param("jsonl", '{"video_id": "v", "caption": "a", "split": ["train"]}', 1, id="a split that is a list"),
        pytest.param("csv", "v", 2, id="a row cut short"),
        pytest.param("csv", '"v","first\nsecond"\nw,', 4, id="after a caption of two lines"),
        pytest.param("csv", "\n\nv,", 4, id="after blank lines of a CSV"),
        pytest.param(
            "jsonl",
            '\n\n{"video_id": "v", "caption": ""}',
            3,
            id="after blank lines of a JSONL",
        ),
        pytest.param("csv", "v,a man, who walks", 2, id="a comma without quotes"),
        pytest.param(
            "jsonl",
            '{"video_id": "v", "caption": "a", "start_seconds": 0, "end_seconds": 1%s}' % ("0" * 400),
            1,
            id="a number larger than a float",
        ),
        pytest.param("jsonl", '{"video_id": "v", "caption": "a \\ud83d"}', 1, id="half a surrogate pair"),
    ],
)
def test_malformed_rows_are_left_out_with_their_line(tmp_path, capsys, kind, text, line):
    path = tmp_path / f"captions.{kind}"
    path.write_text(("video_id,caption\n" if kind == "csv" else "") + text + "\n", encoding="utf-8", newline="")
    problems = Problems()
    list(custom.read(path, 0, problems))
    assert problems.count == 1
    assert capsys.readouterr().err.startswith(f"warning: {path}, line {line}: ")


def test_many_unusable_rows_are_counted_and_listed(tmp_path, capsys):
    path = caption_file(tmp_path, [GOOD, *[GOOD | {"caption": " "}] * 500])
    assert call(tmp_path, "--dataset", "mine", "--annotations", str(path)) == 1
    said, listed = capsys.readouterr().err.splitlines(), tmp_path / "mine" / "problems" / "preprocess.txt"
    assert sum(line.startswith("warning: ") for line in said) == Problems.MAX_LINES + 1
    assert said[-1].startswith("500 ") and str(listed) in said[-1]
    assert [line.split(": ")[0] for line in listed.read_text().splitlines()] == [
        f"{path}, line {n}" for n in range(3, 503)
    ]


@pytest.mark.parametrize("num_videos", [*range(3, 31), 100, 1000])
def test_every_split_has_videos_and_no_video_is_in_two(num_videos):
    ids = [f"video{n}" for n in range(num_videos)]
    splits = custom.split_videos(ids, seed=0)
    assert sorted(splits) == sorted(ids)
    sizes = {split: list(splits.values()).count(split) for split in ("train", "validation", "test")}
    assert sum(sizes.values()) == num_videos
    assert sizes["validation"] == sizes["test"] == max(1, round(num_videos / 10))
    assert sizes["train"] >= 1


@pytest.mark.parametrize("num_videos", [0, 1, 2])
def test_fewer_videos_than_splits_all_go_to_train(num_videos):
    assert custom.split_videos(["a", "b"][:num_videos], seed=0) == dict.fromkeys(["a", "b"][:num_videos], "train")


def test_splits_depend_only_on_seed_and_ids():
    ids = [f"video{n}" for n in range(50)]
    splits = custom.split_videos(ids, seed=0)
    assert custom.split_videos(ids, seed=0) == splits
    assert custom.split_videos(ids[::-1], seed=0) == splits
    assert custom.split_videos(ids, seed=1) != splits
    held = [v for v in ids if splits[v] == "test"]
    assert held == [
        "video18",
        "video26",
        "video36",
        "video44",
        "video47",
    ]  # the five smallest hashes, by `printf "0:video18" | sha256sum`


def test_captions_without_a_split_get_the_split_of_their_video(tmp_path):
    rows = [
        {"video_id": f"v{n % 7}", "caption": f"caption {n}", "start_seconds": n, "end_seconds": n + 1}
        for n in range(21)
    ]
    captions = list(custom.read(caption_file(tmp_path, rows), 5, Problems()))
    splits = custom.split_videos([f"v{n}" for n in range(7)], 5)
    rows.sort(key=lambda row: row["video_id"])  # the captions of a video come together
    assert [(c.video_id, c.caption, c.start_seconds, c.end_seconds) for c in captions] == [
        tuple(row.values()) for row in rows
    ]
    assert [c.split for c in captions] == [splits[row["video_id"]] for row in rows]
    assert {c.split for c in captions} == {"train", "validation", "test"}
