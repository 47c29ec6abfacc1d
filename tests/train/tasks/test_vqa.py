"""The task vqa: accuracies, and what it prints."""

from vlalign.train.tasks import TASKS

TYPES = {"all": 25.0, "other": 50.0, "what": 0.0}
FIGURES = {
    "run": "vqa",
    "trained_on": "asked",
    "dataset": "asked",
    "split": "test",
    "num_captions": 24,
    "num_captions_of_split": 24,
    "num_videos": 12,
    "num_videos_of_split": 13,
    "num_questions": 1024,
    "num_answers": 1500,
    "accuracy": TYPES,
    "question_only": TYPES | {"all": 41.667},
    "most_frequent_answer": TYPES | {"answer": "cut", "all": 20.83},
    "answerable": TYPES | {"all": 95.83},
    "num_of_type": {"other": 512, "what": 512},
    "split_checksum": "74e433fa196e53ae",
}
TABLE = """\
percent               all    other     what
accuracy            25.00    50.00     0.00
question alone      41.67    50.00     0.00
usual answer        20.83    50.00     0.00
answerable          95.83    50.00     0.00
questions           1,024      512      512"""


def test_the_summary_has_a_column_for_each_type_of_question():
    task = TASKS["vqa"]
    assert (
        task.heading(FIGURES) == "vqa: 24 questions about 12 of 13 videos of asked, test; 1,500 answers to choose from"
    )
    table, explanation, checksum = task.summary(FIGURES)
    assert table == TABLE
    assert "always 'cut'" in explanation and checksum.endswith("74e433fa196e53ae")
