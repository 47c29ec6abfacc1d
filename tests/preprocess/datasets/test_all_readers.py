"""What the readers of video captions and questions without times have in common."""

from collections import Counter

import pytest
from helpers.annotation_files import (
    LSMDC_FILES,
    MAPPING,
    MSVD_CAPTIONS,
    MSVD_LISTS,
    QUESTIONS,
    VTT_CAPTIONS,
    VTT_LISTS,
    VTT_SENTENCES,
    data_json,
    movie,
    official_questions,
    question_files,
)
from helpers.readers import untimed_captions_of, write_named
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vlalign.preprocess.datasets import lsmdc, msrvtt, msrvtt_qa, msvd, msvd_qa
from vlalign.storage.common.errors import UserError

READERS = {"msrvtt": msrvtt, "msvd": msvd, "lsmdc": lsmdc, "msrvtt_qa": msrvtt_qa, "msvd_qa": msvd_qa}


ODD_TEXT = "مرحبا \u200f\u05e9\u05dc\u05d5\u05dd 😀👩‍🍳 naïve \u2028 “quoted”\tend"


ODD_TEXT_READ = "مرحبا \u200f\u05e9\u05dc\u05d5\u05dd 😀👩‍🍳 naïve “quoted” end"


WHOLE = {
    "msrvtt": VTT_LISTS | VTT_CAPTIONS["MSRVTT_data.json"],
    "msvd": MSVD_LISTS | {"captions_msvd__json": MSVD_CAPTIONS},
    "lsmdc": LSMDC_FILES,
    "msrvtt_qa": question_files("json"),
    "msvd_qa": question_files("json") | {"youtube_mapping__txt": MAPPING},
}


@pytest.mark.parametrize("name", READERS)
def test_an_empty_folder_lists_missing_files_and_sources(tmp_path, name):
    reader = READERS[name]
    for protocol in reader.DATASET.protocols:
        with pytest.raises(UserError) as refused:
            untimed_captions_of(reader, tmp_path, protocol)
        message = str(refused.value)
        assert message.startswith(f"{tmp_path}: ") and "--annotations" in message and "\n" not in message
        assert len([file for file in reader.DATASET.published if f"{file} (http" in message]) >= 2


@pytest.mark.parametrize("name", READERS)
def test_files_can_be_in_subfolders_and_have_a_byte_order_mark(tmp_path, name):
    expected = untimed_captions_of(READERS[name], write_named(tmp_path / "plain", **WHOLE[name]))
    for number, path in enumerate(sorted((tmp_path / "plain").iterdir())):
        folder = tmp_path / "nested" / f"part{number}"
        folder.mkdir(parents=True)
        (folder / path.name).write_text(
            path.read_text(encoding="utf-8").replace("\n", "\r\n"), encoding="utf-8-sig", newline=""
        )
    assert untimed_captions_of(READERS[name], tmp_path / "nested") == expected
    assert expected[0] and expected[1] == 0


JSON_FILES = {
    ("msrvtt", "MSRVTT_data__json"),
    ("msvd", "captions_msvd__json"),
    ("msrvtt_qa", "val_qa__json"),
    ("msvd_qa", "test_qa__json"),
}


OTHER_SHAPES = [
    *("", "{", "[]", "{}", "7", "null", '"text"', "[7]", '{"a": 7}', '[{"a": 7}]', "[" * 100_000),
    *('{"sentences": 7}', '{"sentences": [{}]}', '{"video1": "text"}', '{"video1": {"a": "text"}}'),
    '{"sentences": [{"video_id": [], "sen_id": 1, "caption": "a"}]}',
    '{"sentences": [{"video_id": "video0", "sen_id": 1e999, "caption": "a"}]}',
]


@pytest.mark.parametrize("shape", range(len(OTHER_SHAPES)))
@pytest.mark.parametrize(("name", "file"), sorted(JSON_FILES))
def test_json_with_another_structure_is_rejected_in_one_line_or_has_no_captions(tmp_path, capsys, name, file, shape):
    write_named(tmp_path, **WHOLE[name] | {file: OTHER_SHAPES[shape]})
    before = write_named(tmp_path / "whole", **WHOLE[name])
    whole = len(untimed_captions_of(READERS[name], before)[0])
    for path in before.iterdir():
        path.unlink()
    try:
        captions, problems = untimed_captions_of(READERS[name], tmp_path)
    except UserError as error:
        assert str(tmp_path / file.replace("__", ".")) in str(error) and "\n" not in str(error)
    else:  # valid, but without the captions
        assert len(captions) < whole and (problems or OTHER_SHAPES[shape] == "[]")


@pytest.mark.parametrize(
    ("name", "file", "content", "named"),
    [
        ("msrvtt", "MSRVTT_train__9k__csv", "video0\nvideo1\n", [" video_id;"]),
        ("msrvtt", "MSRVTT_train__9k__csv", b"\xff\xfe\x00v", ["0xff"]),
        ("msrvtt", "MSRVTT_JSFUSION_test__csv", "video_id\nvideo0\n", [" sentence;"]),
        ("msrvtt", "MSRVTT_JSFUSION_test__csv", "video_id,sentence\nvideo0,a,b\n", ["line 2: ", "2"]),
        (
            "msrvtt",
            "MSRVTT_JSFUSION_test__csv",
            'video_id,sentence\nvideo0,"a\n',
            ["unexpected end of data"],  # by Python
        ),
        ("msrvtt", "MSRVTT_data__json", b'{"sentences": "\xe9"}', ["0xe9"]),
        ("msvd", "train_list__txt", b"caf\xe9\n", ["0xe9"]),
        ("msvd", "captions_msvd__json", '{"x_y_2_3": "a man"}', ["video 'x_y_2_3'"]),
        ("lsmdc", "LSMDC16_annos_val__csv", "a,b,c,d,e,f\n", ["line 1: ", "6"]),
        ("lsmdc", "LSMDC16_annos_val__csv", movie(("a", "b")) + movie(("c", "d\te")), ["line 2: ", "6"]),
        ("lsmdc", "LSMDC16_annos_training__csv", b"a\tb\tc\td\te\tcaf\xe9\n", ["0xe9"]),
        (
            "msrvtt_qa",
            "train_qa__json",
            '[{"id": 1, "video_id": 3, "question": "what?"}]',
            ["question 1 ", "'answer'"],
        ),
        (
            "msrvtt",
            "MSRVTT_data__json",
            '{"sentences": [{"sen_id": 1, "video_id": "video1"}]}',
            ["sentence 1 ", "'caption'"],
        ),
        ("msvd_qa", "youtube_mapping__txt", "name\n", ["'name': ", "2"]),
        ("msvd_qa", "youtube_mapping__txt", "two words vid3\n", ["'two words vid3': ", "2"]),
    ],
)
def test_files_with_another_structure_are_named(tmp_path, name, file, content, named):
    write_named(tmp_path, **WHOLE[name] | {file: content})
    with pytest.raises(UserError) as refused:
        untimed_captions_of(READERS[name], tmp_path)
    message = str(refused.value)
    place, _, rest = message.partition(file.replace("__", "."))
    assert place == f"{tmp_path}/" and all(each in rest for each in named) and "\n" not in message, message


@pytest.mark.parametrize("text", [ODD_TEXT, "long " * 200_000 + "end"], ids=["odd", "1 MB"])
@pytest.mark.parametrize("name", READERS)
def test_any_text_is_read_completely(tmp_path, name, text):
    files = {
        "msrvtt": {
            "MSRVTT_data__json": data_json([{"caption": text, "video_id": "video1", "sen_id": -1}, *VTT_SENTENCES])
        },
        "msvd": {"captions_msvd__json": MSVD_CAPTIONS | {"-aB_1_5": [text]}},
        "lsmdc": {"LSMDC16_annos_val__csv": movie(("clip", text.replace("\t", " ")))},
        "msrvtt_qa": {"val_qa__json": official_questions([(1, text, "man")])},
        "msvd_qa": {"val_qa__json": official_questions([(1, text, "man")])},
    }
    captions, problems = untimed_captions_of(READERS[name], write_named(tmp_path, **WHOLE[name] | files[name]))
    assert problems == 0
    assert (ODD_TEXT_READ if text is ODD_TEXT else text) in {c.caption for c in captions}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_order_of_rows_does_not_matter(tmp_path, data):
    shuffle = st.randoms(use_true_random=False)
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    sentences, questions, clips = (
        list(VTT_SENTENCES),
        list(QUESTIONS),
        [(f"clip{n % 5}", f"text {n}") for n in range(12)],
    )
    for rows in (sentences, questions, clips):
        data.draw(shuffle).shuffle(rows)
    mixed = {
        "msrvtt": VTT_LISTS | {"MSRVTT_data__json": data_json(sentences)},
        "msrvtt_qa": question_files("jsonl", questions),
        "msvd_qa": question_files("json", questions) | {"youtube_mapping__txt": MAPPING},
        "lsmdc": LSMDC_FILES | {"LSMDC16_annos_training__csv": movie(*clips)},
    }
    for name, files in mixed.items():
        captions, problems = untimed_captions_of(READERS[name], write_named(folder / name, **files))
        if name == "lsmdc":
            assert sorted((c.video_id, c.caption) for c in captions if c.split == "train") == sorted(clips)
        else:
            expected, _ = untimed_captions_of(READERS[name], write_named(folder / f"{name} whole", **WHOLE[name]))
            assert Counter(map(repr, captions)) == Counter(map(repr, expected))
        assert problems == 0
