"""Write the losses of one short run of each objective, to the last digit, and compare them with another version's.

python tests/benchmarks/curves.py FOLDER                    writes FOLDER/curves.json
python tests/benchmarks/curves.py FOLDER --against OLDER    compares with OLDER/curves.json, of another version
"""

import argparse
import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from helpers.labelled import make_questions, make_segments
from helpers.spoken import make_spoken
from helpers.toy import make_toy
from helpers.training import PAIR_CASES, QUESTIONS, SEGMENTS, SPOKEN, options
from vlalign.train.cli.train import main as train_main

CASES = {"taco": ("toy", {"objective": "taco"}), "toco": ("toy", {"objective": "toco"})}
CASES |= {f"{name} settings": ("toy", settings) for name, settings in PAIR_CASES.items()}
CASES |= {"vqa": ("asked", QUESTIONS), "segmentation": ("segmented", SEGMENTS), "spoken": ("spoken", SPOKEN)}
FEATURES = {"toy": "s3d"}
NUM_STEPS = 20


def curve(root: Path, dataset: str, settings: dict, name: str) -> list[dict[str, str]]:
    """Return every logged figure of each step, as hexadecimal digits."""
    call = [
        "--root",
        str(root),
        "--dataset",
        dataset,
        "--features",
        FEATURES.get(dataset, "resnet152"),
        "--run-name",
        name,
    ]
    few = {"num_negatives": 3} if settings["objective"] in ("taco", "toco") else {}
    call += [
        "--num-steps",
        str(NUM_STEPS),
        "--validate-every",
        "3",
        *options({"batch_size": 12} | few | settings),
    ]
    assert train_main(call) == 0, f"{name} did not train"
    lines = (root / dataset / "runs" / name / "events.jsonl").read_text().splitlines()
    return [{key: float(value).hex() for key, value in json.loads(line).items() if value is not None} for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="for data and runs; empty or new")
    parser.add_argument(
        "--against", type=Path, metavar="OLDER", help="folder of an earlier call, by another version of the code"
    )
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    make_toy(args.folder)
    make_questions(args.folder)
    make_segments(args.folder)
    make_spoken(args.folder)
    curves = {
        case: curve(args.folder, dataset, settings, case.replace(" ", "-"))
        for case, (dataset, settings) in CASES.items()
    }
    (args.folder / "curves.json").write_text(json.dumps(curves, indent=1))
    older = json.loads((args.against / "curves.json").read_text()) if args.against else None
    for case, events in curves.items():
        losses = " ".join(f"{float.fromhex(event['loss']):.6f}" for event in events)
        print(f"{case:<24} {losses}  {'' if older is None else 'the same' if older[case] == events else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
