"""vlalign-convert: CLIP checkpoints of OpenAI and CLIP4Clip -> folders that the other commands read."""

import argparse
from pathlib import Path

from ...storage.cli.command import run_command
from ...storage.cli.parser import Parser, new_parser
from ...storage.common.errors import EXIT_DONE
from ...storage.common.terminal import number_of, say, show


def _convert(args: argparse.Namespace) -> int:
    from ..encoders.openai_clip import convert_clip  # torch takes seconds to import

    converted = convert_clip(args.checkpoint, args.folder, args.like)
    if converted.unused:
        some = ", ".join(converted.unused[:3]) + (", ..." if len(converted.unused) > 3 else "")
        say(f"note: {args.checkpoint}: {number_of(len(converted.unused), 'entries')} skipped, not part of CLIP: {some}")
    show(f"{converted.folder}: a CLIP with {number_of(converted.num_weights, 'weights')}, as transformers writes it")
    return EXIT_DONE


def make_parser() -> Parser:
    """Return the parser of vlalign-convert."""
    parser = new_parser(
        "vlalign-convert",
        "Convert a checkpoint in the layout of OpenAI's CLIP, such as one of CLIP4Clip, to a folder as transformers "
        "writes it. The folder works as --features hf:FOLDER, --text-encoder FOLDER and --video-tower hf:FOLDER.",
        "vlalign-convert pytorch_model.bin.4 clip4clip --like clip-vit-base-patch32\n"
        "  vlalign-extract --dataset mine --features hf:./clip4clip",
    )
    of_checkpoint = "file that torch.save wrote; no code in it is run"
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help=of_checkpoint)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a new folder")
    parser.add_argument(
        "--like",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="folder of a CLIP of the same sizes, such as hf download openai/clip-vit-base-patch32 --local-dir FOLDER "
        "writes; its configuration, tokenizer and image processor are copied",
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_command(_convert, make_parser(), argv)
