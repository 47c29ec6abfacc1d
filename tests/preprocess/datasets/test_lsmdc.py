"""The reader of LSMDC."""

from helpers.annotation_files import LSMDC_FILES, movie
from helpers.readers import untimed_captions_of, warnings, write_named
from vlalign.preprocess.datasets import lsmdc


def test_lsmdc(tmp_path):
    captions, problems = untimed_captions_of(lsmdc, write_named(tmp_path, **LSMDC_FILES))
    assert problems == 0
    assert [(c.split, c.video_id, c.caption) for c in captions] == [
        ("train", "0001_A_Movie_00.00.01.000-00.00.02.500", "SOMEONE opens a door."),
        ("train", "0001_A_Movie_00.00.01.000-00.00.02.500", "He goes in."),
        ("train", "3002_OTHER_00.00.01.000-00.00.02.500", '"Stop," says a sign, and SOMEONE\'s car stops.'),
        ("validation", "1003_Third_00.00.01.000-00.00.02.500", 'A "quote in the middle.'),
        ("test", "1004_Fourth_00.00.01.000-00.00.02.500", "First line, no header."),
        ("test", "1004_Fourth_00.00.05.000-00.00.07.500", "Second."),
    ]


def test_lsmdc_bad_rows_are_left_out_with_their_line(tmp_path, capsys):
    write_named(
        tmp_path,
        **LSMDC_FILES | {"LSMDC16_annos_val__csv": "\n" + movie(("a", " "), ("", "text"), ("b", "kept")) + "\n\n"},
    )
    captions, problems = untimed_captions_of(lsmdc, tmp_path)
    assert ([c.video_id for c in captions if c.split == "validation"], problems) == (["b"], 2)
    assert sorted(warning.split(": ")[0] for warning in warnings(capsys)) == [
        f"{tmp_path / 'LSMDC16_annos_val.csv'}, line {line}" for line in (2, 3)
    ]
