"""The command vlalign-transcribe."""

import argparse
from collections.abc import Callable

from ...storage.cli.command import run_command
from ...storage.cli.parser import Parser, add_setting, command_parser, given_settings, next_call
from ...storage.common.errors import EXIT_DONE, EXIT_INCOMPLETE, UserError
from ...storage.common.settings import names_of_options
from ...storage.common.terminal import number_of, say, show, warn
from ...storage.dataset.folder import DatasetFolder
from ...storage.dataset.synced import is_synced
from ..ocr.model import check_installed
from ..settings import NOT_RETRIED
from ..transcription.dataset import TranscriptionResult, transcribe_dataset
from ..transcription.settings import SPEECH, TranscriptionSettings

Transcribe = Callable[[TranscriptionSettings], TranscriptionResult]


def transcribe_parser(prog: str, description: str, example: str) -> Parser:
    """Return the parser of ``vlalign-transcribe`` and of the cluster job that does the same."""
    parser = command_parser(prog, description, example)
    for name in names_of_options(TranscriptionSettings):
        add_setting(parser, TranscriptionSettings, name)
    return parser


def make_parser() -> Parser:
    """Return the parser of ``vlalign-transcribe``."""
    return transcribe_parser(
        "vlalign-transcribe",
        "Transcribe speech in the videos of a data set, with the times of words, or text in their frames.",
        "vlalign-transcribe --dataset mine\n  vlalign-transcribe --dataset mine --weights models/whisper-small\n"
        "  vlalign-transcribe --dataset mine --what text",
    )


def run_transcribe(args: argparse.Namespace, transcribe: Transcribe = transcribe_dataset) -> int:
    """Run a transcription with the options of ``transcribe_parser`` and print its result; return the exit code.

    Args:
        args: The options.
        transcribe: ``transcribe_dataset``, or a function that does the same elsewhere.
    """
    if args.dataset is None:
        raise UserError(f"--dataset is missing: pass the name of a data set under {args.root}")
    dataset = DatasetFolder(args.root, args.dataset)
    settings = TranscriptionSettings(dataset=dataset.path, **given_settings(args, TranscriptionSettings))
    is_speech = settings.what == SPEECH
    if is_speech:
        import faster_whisper  # noqa: F401 (if it is missing, the command ends before any work is done)
    else:
        check_installed()
    result = transcribe(settings)
    done, hours = len(result.transcribed), result.duration_seconds / 3600
    show(
        f"{settings.transcripts}: {number_of(done, 'videos')} transcribed ({hours:,.2f} h of "
        f"{'sound' if is_speech else 'video'}, {number_of(result.num_with_text, 'videos')} with {settings.what}), "
        f"{number_of(len(result.failed), 'videos')} failed"
    )
    if result.num_untried:
        say(f"{number_of(result.num_untried, 'videos')} not tried, {NOT_RETRIED}")
    if result.num_at_addresses:
        warn(
            f"warning: {number_of(result.num_at_addresses, 'videos')} at addresses are not transcribed; download them "
            "first, and list the files"
        )
    if result.complete:
        reads_them = "vlalign-sync" if is_speech and is_synced(dataset.path) else "vlalign-preprocess"
        say(next_call(reads_them, args.root, args.dataset, protocol=None if is_speech else settings.what))
    return EXIT_DONE if result.complete else EXIT_INCOMPLETE


def main(argv: list[str] | None = None) -> int:
    """Run ``vlalign-transcribe``; return its exit code."""
    return run_command(run_transcribe, make_parser(), argv)
