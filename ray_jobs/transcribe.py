"""Transcribing videos on a Ray cluster: ``python ray_jobs/transcribe.py --dataset howto100m``, with the options of
vlalign-transcribe.

Each core keeps a model loaded and transcribes one video after another. This program writes the transcripts as they
come; after an interruption, at most the videos in progress are transcribed again.

``ray submit`` copies this one file to the head machine, where it runs with the vlalign that the cluster file installs;
so its imports are absolute.
"""

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from vlalign.extract.cli.transcribe import run_transcribe, transcribe_parser
from vlalign.extract.transcription.dataset import TranscriptionResult, transcribe_dataset
from vlalign.extract.transcription.settings import TranscriptionSettings
from vlalign.ray_jobs.cluster import add_address, connect, spread
from vlalign.storage.cli.command import run_command
from vlalign.storage.common.errors import SettingError
from vlalign.storage.common.progress import Listener
from vlalign.storage.hub.names import is_hub_name


def transcribe_dataset_on_cluster(
    settings: TranscriptionSettings,
    *,
    address: str | None = None,
    on_progress: Listener | None = None,
) -> TranscriptionResult:
    """Do what ``transcribe_dataset`` does; each core of a Ray cluster transcribes videos.

    Args:
        settings: What to transcribe. All machines must see the data set's folder, its videos and the model's files; the
            device is "auto" or "cpu".
        address: Address of the cluster, as for ``connect``.
        on_progress: Called with the progress.

    Returns:
        The numbers of videos, as ``transcribe_dataset`` returns them.

    Raises:
        UserError: As for ``transcribe_dataset``; or no cluster answers, or it could not do the work.

    Example:
        >>> from vlalign.extract import TranscriptionSettings
        >>> from vlalign.ray_jobs import transcribe_dataset_on_cluster
        >>> settings = TranscriptionSettings(dataset="vlalign_data/demo", weights="models/whisper-small")
        >>> transcribe_dataset_on_cluster(settings).complete  # doctest: +SKIP
        True
    """
    if settings.device not in ("auto", "cpu"):
        raise SettingError("device", settings.device, "a cluster transcribes on its cores; expected cpu")
    connect(address)
    weights = settings.weights if is_hub_name(settings.weights) else str(Path(settings.weights).absolute())
    shared = replace(settings, dataset=Path(settings.dataset).absolute(), weights=weights, device="cpu")
    return transcribe_dataset(shared, spread=spread, on_progress=on_progress)


def transcribe(args: argparse.Namespace) -> int:
    """Run the command."""
    return run_transcribe(args, partial(transcribe_dataset_on_cluster, address=args.address))


def main(argv: list[str] | None = None) -> int:
    """Run the command ``transcribe.py`` and return its exit code."""
    parser = transcribe_parser(
        "transcribe",
        "Do on a Ray cluster what vlalign-transcribe does on one machine. --root is a folder that all machines see.",
        "ray submit ray_jobs/extract_howto100m.yaml ray_jobs/transcribe.py --root /mnt/vlalign --dataset howto100m "
        "--weights /mnt/models/whisper-small",
    )
    add_address(parser)
    return run_command(transcribe, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
