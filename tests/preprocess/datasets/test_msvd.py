"""The reader of MSVD."""

import pytest
from helpers.annotation_files import MSVD_CAPTIONS, MSVD_LISTS
from helpers.needs import shared
from helpers.readers import counts, lines, untimed_captions_of, warnings, write_named
from vlalign.preprocess.datasets import msvd


def corpus(captions, *more):
    header = "VideoID,Start,End,WorkerID,Source,AnnotationTime,Language,Description"
    rows = []
    for video, sentences in captions.items():
        name, start, end = video.rsplit("_", 2)
        rows += [f'{name},{start},{end},7,clean,12,English,"{sentence}"' for sentence in sentences]
        rows.append(f"{name},{start},{end},8,unverified,12,German,ein Satz")
    return lines(header, *rows, *more)


@pytest.mark.parametrize("form", ["json", "csv", "csv in another order"])
def test_msvd_keeps_every_english_caption_of_its_lists(tmp_path, form):
    write_named(tmp_path, **MSVD_LISTS)
    if form == "json":
        write_named(tmp_path, captions_msvd__json=MSVD_CAPTIONS)
    elif form == "csv":
        write_named(tmp_path, video_corpus__csv=corpus(MSVD_CAPTIONS))
    else:
        header, *rows = corpus(MSVD_CAPTIONS).splitlines()
        write_named(tmp_path, video_corpus__csv=lines(header, *rows[::2], *rows[1::2]))
    captions, problems = untimed_captions_of(msvd, tmp_path)
    assert problems == 0
    assert [(c.split, c.video_id) for c in captions] == [
        *[("train", "-aB_1_5"), ("train", "x_y_2_3"), ("train", "x_y_2_3"), ("validation", "q_0_9")],
        *[("test", "z_10_20")] * 3,
    ]
    for video in {c.video_id for c in captions}:
        assert sorted(c.caption for c in captions if c.video_id == video) == sorted(MSVD_CAPTIONS[video])


def test_msvd_prefers_the_caption_file_to_the_corpus(tmp_path):
    """The corpus has other spellings of the same sentences, and more sentences."""
    write_named(
        tmp_path, **MSVD_LISTS, captions_msvd__json=MSVD_CAPTIONS, video_corpus__csv=corpus({"q_0_9": ["A dog barks!"]})
    )
    captions, problems = untimed_captions_of(msvd, tmp_path)
    assert (len(captions), problems) == (7, 0) and "A dog barks!" not in {c.caption for c in captions}


def test_msvd_reports_clips_without_captions_and_bad_captions(tmp_path, capsys):
    changed = {video: sentences for video, sentences in MSVD_CAPTIONS.items() if video != "q_0_9"} | {
        "z_10_20": ["a cat", "", None]
    }
    write_named(tmp_path, **MSVD_LISTS, captions_msvd__json=changed)
    captions, problems = untimed_captions_of(msvd, tmp_path)
    assert (counts(captions), problems) == ({"train": (2, 3), "test": (1, 1)}, 3)
    missing, empty, none = warnings(capsys)
    path = tmp_path / "captions_msvd.json"
    assert missing.startswith(f"{tmp_path / 'val_list.txt'}: 1 of 1 videos ") and str(path) in missing
    assert empty.startswith(f"{path}, video 'z_10_20', caption 2: ") and none.startswith(
        f"{path}, video 'z_10_20', caption 3: "
    )

    (tmp_path / "captions_msvd.json").unlink()
    write_named(tmp_path, video_corpus__csv=corpus(MSVD_CAPTIONS, "q,0,9,7,clean,12,English,  "))
    captions, problems = untimed_captions_of(msvd, tmp_path)
    assert (len(captions), problems) == (7, 1)
    assert warnings(capsys)[0].startswith(f"{tmp_path / 'video_corpus.csv'}, line 15: ")


def test_msvd_real_counts():
    captions, problems = untimed_captions_of(msvd, shared("data/msvd"))
    assert (counts(captions), problems) == (
        {"train": (1200, 48774), "validation": (100, 4290), "test": (670, 27763)},
        0,
    )
    assert len({c.caption for c in captions if c.split == "test"}) == 22285
