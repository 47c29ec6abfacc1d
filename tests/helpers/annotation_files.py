"""Small annotation files in the published formats."""

import json
import random

from helpers.readers import lines, write

VTT = range(12)


VTT_SENTENCES = [
    {"caption": f"caption {n} of clip {v}", "video_id": f"video{v}", "sen_id": 20 * v + n}
    for v in VTT
    for n in reversed(range(20))
]


VTT_LISTS = {
    "MSRVTT_train__9k__csv": lines("video_id", *(f"video{v}" for v in range(9))),
    "MSRVTT_train__7k__csv": lines("video_id", *(f"video{v}" for v in range(7))),
    "MSRVTT_JSFUSION_test__csv": lines(
        "key,vid_key,video_id,sentence", *(f"ret{v},msr{v},video{v},caption {v} of clip {v}" for v in (11, 9, 10))
    ),
    "train_list_miech__txt": lines(*(f"video{v}" for v in (0, 1, 9))),
    "test_list_miech__txt": "\n".join(
        f"video{v}" for v in (4, 5, 10)
    ),  # like the real file, without a newline at the end
    "train_list_full__txt": lines(*(f"video{v}" for v in range(6))),
    "val_list_full__txt": lines("video6", "video7"),
    "test_list_full__txt": lines(*(f"video{v}" for v in range(8, 12))),
}


def data_json(sentences):
    return {"videos": [{"video_id": f"video{v}", "split": "train", "url": "?"} for v in VTT], "sentences": sentences}


def by_video(videos):
    return {
        f"video{v}": {str(s["sen_id"]): s["caption"] for s in VTT_SENTENCES if s["video_id"] == f"video{v}"}
        for v in videos
    }


def shuffled():
    rows = list(VTT_SENTENCES)
    random.Random(1).shuffle(rows)
    return rows


VTT_CAPTIONS = {
    "MSRVTT_data.json": {"MSRVTT_data__json": data_json(VTT_SENTENCES)},
    "MSRVTT_data.json, shuffled": {"MSRVTT_data__json": data_json(shuffled())},
    "the challenge's": {
        "train_val_videodatainfo__json": data_json(VTT_SENTENCES[:160]),
        "test_videodatainfo__json": data_json(VTT_SENTENCES[160:]),
    },
    "by video": {
        "sgn_train__json": by_video(range(6)),
        "sgn_val__json": by_video((6, 7)),
        "sgn_test__json": by_video(range(8, 12)),
    },
}


MSVD_LISTS = {
    "train_list__txt": lines("-aB_1_5", "x_y_2_3"),
    "val_list__txt": lines("q_0_9"),
    "test_list__txt": lines("z_10_20"),
}


MSVD_CAPTIONS = {
    "z_10_20": ["a cat runs", "a cat runs", "somebody's cat"],
    "-aB_1_5": ["a man cooks"],
    "x_y_2_3": ["rice is boiled", "a man cooks"],
    "q_0_9": ["a dog barks"],
    "other_1_2": ["of no list"],
}


def movie(*rows):
    return lines(
        *(
            "\t".join((clip, "00.00.01.000", "00.00.02.500", "00.00.01.000", "00.00.03.000", text))
            for clip, text in rows
        )
    )


LSMDC_FILES = {
    "LSMDC16_annos_training__csv": movie(
        ("0001_A_Movie_00.00.01.000-00.00.02.500", "SOMEONE opens a door."),
        ("3002_OTHER_00.00.01.000-00.00.02.500", '"Stop," says a sign, and SOMEONE\'s car stops.'),
        ("0001_A_Movie_00.00.01.000-00.00.02.500", "He goes in."),
    ),
    "LSMDC16_annos_val__csv": movie(("1003_Third_00.00.01.000-00.00.02.500", 'A "quote in the middle.')),
    "LSMDC16_challenge_1000_publictect__csv": movie(
        ("1004_Fourth_00.00.01.000-00.00.02.500", "First line, no header."),
        ("1004_Fourth_00.00.05.000-00.00.07.500", "Second."),
    ),
}


QUESTIONS = [
    (video, question, answer)
    for video in (3, 12, 7)
    for question, answer in (
        ("what is a man cooking?", "rice"),
        ("who cooks?", "man"),
        ("How many dogs run?", "two"),
        ("when does it rain?", "night"),
        ("where is the dog?", "park"),
        ("does it rain?", "yes"),
    )
]


QUESTION_TYPES = ["what", "who", "how", "when", "where", None]


QUESTION_SPLITS = {"train": "train", "val": "validation", "test": "test"}


def official_questions(questions):
    return [
        {"answer": answer, "category_id": 14, "id": number, "question": question, "video_id": video}
        for number, (video, question, answer) in enumerate(questions)
    ]


def question_files(form, questions=QUESTIONS, splits=QUESTION_SPLITS):
    files = {}
    for split in splits:
        rows = [
            (video + 100 * list(QUESTION_SPLITS).index(split), question, answer)
            for video, question, answer in questions
        ]
        if form == "json":
            files[f"{split}_qa__json"] = official_questions(rows)
        elif form == "jsonl":
            files[f"{split}__jsonl"] = lines(
                *(
                    json.dumps({"answer": a, "question": q, "video_id": f"video{v}", "answer_type": q.split()[0]})
                    for v, q, a in rows
                )
            )
        else:
            files[f"hqga_{split}__csv"] = lines(
                "video,question,answer,qid,type", *(f"{v},{q},{a},{v},10" for v, q, a in rows)
            )
    return files


MAPPING = lines(*(f"clip-_{v}_{v}_{v + 4} vid{v}" for v in range(300)))


GOOD_FILES = {
    "activitynet": {
        "train.json": {"v_a": {"duration": 10.0, "timestamps": [[0, 5]], "sentences": ["one"]}},
        "val_1.json": {"v_b": {"duration": 10.0, "timestamps": [[0, 5]], "sentences": ["two"]}},
    },
    "coin": {
        "COIN.json": {
            "database": {
                "a": {
                    "subset": "training",
                    "class": "T",
                    "duration": 9.5,
                    "annotation": [{"id": "7", "segment": [1.0, 2.0], "label": "x"}],
                }
            }
        }
    },
    "crosstask": {
        "tasks_primary.txt": "1\nMake Tea\nhttp://x\n2\nboil water,pour water\n\n",
        "videos.csv": "1,a,http://a\n1,b,http://b\n",
        "videos_val.csv": "1,a,http://a\n",
        "annotations/1_a.csv": "1,0.0,2.5\n",
        "annotations/1_b.csv": "2,1,2\n",
    },
    "howto100m": {"caption.json": {"a": {"text": ["one"], "start": [0.0], "end": [9.0]}}},
    "youcook2": {
        "youcookii_annotations_trainval.json": {
            "database": {
                "a": {
                    "subset": "training",
                    "duration": 90.0,
                    "recipe_type": "101",
                    "annotations": [{"id": 0, "segment": [1, 2], "sentence": "cut it"}],
                }
            }
        },
        "validation_youcook.csv": "end,start,task,text,video_id\n9,3,102,stir it,b\n",
    },
}


def youcook(annotations, subset="training", recipe="101"):
    return {"subset": subset, "recipe_type": recipe, "duration": 90.0, "annotations": annotations}


def youcook_clip(number, start, end, sentence):
    return {"id": number, "segment": [start, end], "sentence": sentence}


def youcook_files(videos, rows=""):
    return {
        "youcookii_annotations_trainval.json": {"database": videos},
        "validation_youcook.csv": "end,start,task,text,video_id\n" + rows,
    }


def coin_video(subset, segments, duration=30.0, task="MakeTea"):
    annotation = [{"id": number, "segment": times, "label": label} for number, times, label in segments]
    return {"subset": subset, "class": task, "recipe_type": 3, "duration": duration, "annotation": annotation}


def coin_file(folder, videos):
    return write(folder, {"COIN.json": {"database": videos}}) / "COIN.json"


ODD_TEXT = " مرحبا \u200f\u05e9\u05dc\u05d5\u05dd 😀👩\u200d🍳 naïve\n“quoted”, "
ODD_TEXT_READ = "مرحبا \u200f\u05e9\u05dc\u05d5\u05dd 😀👩\u200d🍳 naïve “quoted”,"
LONG_TEXT = "word " * 200_000 + "end"


def howto_video(*rows):
    """Return rows (start, end, text) as columns."""
    return {"start": [row[0] for row in rows], "end": [row[1] for row in rows], "text": [row[2] for row in rows]}
