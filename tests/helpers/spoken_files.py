"""Small annotation files of the data sets of spoken captions, Places and S-MiT."""

import json


def places_entry(number, image, transcript):
    return {
        "uttid": f"speaker{number}-utt{number}",
        "speaker": f"speaker{number}",
        "asr_text": transcript,
        "wav": f"wavs/{number % 2}/utt{number}.wav",
        "image": image,
    }


def places_files(folder, train, val):
    (folder / "metadata").mkdir(parents=True, exist_ok=True)
    for name, data in (("train", train), ("val", val)):
        content = {"image_base_path": "/their/images/", "audio_base_path": "/their/audio/", "data": data}
        (folder / "metadata" / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


PLACES_TRAIN = [
    places_entry(1, "k/kitchen/a.b.jpg", "a  small kitchen"),
    places_entry(2, "b/beach/c.jpg", "ein Strand — 😀"),
    places_entry(3, "k/kitchen/a.b.jpg", "pots"),
]


PLACES_VAL = [places_entry(4, "b/beach/d.jpg", "two people walk")]


def smit_files(folder, lists, transcripts):
    """Write ``lists``, {file name: lines}, and ``transcripts``, {clip: content of its file}."""
    for name, lines in lists.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "transcriptions").mkdir(exist_ok=True)
    for clip, content in transcripts.items():
        path = folder / "transcriptions" / f"{clip}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


SMIT_LISTS = {
    "train_set.txt": ["run/a", "fly/b.1"],
    "val_set.txt": ["run/c"],
    "test_set.txt": ["fly/d", "run/e", "fly/d"],
}


SMIT_TRANSCRIPTS = {
    "run/a": "a man  runs\nnot this",
    "fly/b.1": "birds — 😀\n",
    "run/c": "dogs run",
    "fly/d": "a plane flies",
    "run/e": "\ufeffhe runs",
}
