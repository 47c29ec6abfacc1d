"""Time, memory and disk of the stages for the real HowTo100M, from rates that were measured elsewhere.

The machines are those of ``extract_howto100m.yaml``: 64 with 16 cores and one L4 each. ``SOURCES`` says where each
number comes from; "not measured" stands where none is known.
"""

from dataclasses import dataclass

from vlalign.train.search.index import SEARCH_WINDOW_SECONDS

NUM_VIDEOS, NUM_CAPTIONS, SECONDS = 1_200_000, 136_000_000, 134_000 * 3600
WINDOWS_A_SECOND = sum(2 / length for length in SEARCH_WINDOW_SECONDS)
NUM_WINDOWS = NUM_VIDEOS + SECONDS * WINDOWS_A_SECOND
NUM_MACHINES, CORES, DECODING_CORES = 64, 16, 12
DECODING_CORE_HOURS, NETWORK_HOURS = 3_929, 73
DOLLARS_AN_HOUR = 1.32
TAGGED_A_SECOND = 3_358 / 2
FIRST_PASS_SECONDS = 120 + 19 * 60 / 10
WRITTEN_A_SECOND = 20_000_000 / 49.9 / 2
CLIPS_SECONDS, FIRST_STEP_SECONDS = 7.8 / 20e6, 5
"""To find a caption's clip, and from the command to the first step when all clips are found."""
CLIP_BYTES = 40
ENCODED_A_SECOND = 10_000_000 / 224
CODED = 136_000_000
CODES_CORE_HOURS, INDEX_MEMORY_GIB, INDEX_DISK_GB = 2.4, 23, 148
"""What ``CODED`` windows take."""
NOT_MEASURED = "not measured"
SOURCES = (
    "s3d needs 3,929 core hours of decoding and 73 hours of a GPU at 100 TFLOP/s: docs/clusters.md, extrapolated. With "
    "12 of 16 cores for decoding, decoding decides.",
    "1.32 dollars an hour for a g6.4xlarge is assumed and was not looked up; it is about AWS's price on demand in "
    "us-east-1. Spot machines cost less.",
    "3,358 captions a second on two cores, 1.34 GB for both, first pass 2 minutes and 19 core minutes for ten cores: "
    "tests/benchmarks/README.md, Preprocessing. The disk is this benchmark's, per caption.",
    "20 million captions: 49.9 s on two cores for the file that is mapped, 7.8 s and 40 bytes each for the clips, 0.6 "
    "GB in each process: tests/benchmarks/README.md, Training on many captions. Steps on a GPU were not measured.",
    f"{NUM_WINDOWS / 1e6:.0f} million windows (train/search/index.py). On one core, 10 million are encoded in 224 s. "
    "For 136 million, codes take 2.4 core hours and 23 GiB, and the disk 148 GB: tests/benchmarks/README.md, Index.",
    "100,000 captions and clips: 1,135 s of processor time and 2.5 GiB: tests/benchmarks/README.md, Evaluation of many "
    "captions and clips.",
)


@dataclass(frozen=True)
class Real:
    """Time, memory, disk and price of a stage, as text."""

    time: str
    memory: str
    disk: str
    gpu_hours: str = "0"
    dollars: str = "0"
    sources: tuple[int, ...] = ()
    """Numbers of ``SOURCES``, from 1."""


def worked_out(caption_bytes: float) -> dict[str, Real]:
    """Return what each stage takes.

    Args:
        caption_bytes: What a caption takes on disk.
    """
    extraction = DECODING_CORE_HOURS / (NUM_MACHINES * DECODING_CORES)
    gpu_hours = max(extraction * NUM_MACHINES, NETWORK_HOURS)
    tagging = NUM_CAPTIONS * (1 / TAGGED_A_SECOND + 1 / WRITTEN_A_SECOND) / 3600 / CORES + FIRST_PASS_SECONDS / 3600
    first_step = NUM_CAPTIONS * CLIPS_SECONDS + FIRST_STEP_SECONDS
    times = NUM_WINDOWS / CODED
    indexing = (NUM_WINDOWS / ENCODED_A_SECOND / 3600 + times * CODES_CORE_HOURS) / CORES
    return {
        "plan": Real(NOT_MEASURED, NOT_MEASURED, "0"),
        "extract": Real(
            f"{extraction:.1f} h on {NUM_MACHINES} machines",
            "0.2 GB in the driver",
            "1.5 TB",
            f"{gpu_hours:,.0f}",
            f"{gpu_hours * DOLLARS_AN_HOUR:,.0f}",
            (1, 2),
        ),
        "preprocess": Real(
            f"{tagging:.1f} h on one machine",
            f"{1.34 / 2 * CORES:.0f} GB",
            f"{NUM_CAPTIONS * caption_bytes / 1e9:,.0f} GB",
            dollars=f"{tagging * DOLLARS_AN_HOUR:,.0f}",
            sources=(2, 3, 4),
        ),
        "train": Real(
            f"{first_step:.0f} s to the first step, later {FIRST_STEP_SECONDS} s; steps {NOT_MEASURED}",
            "0.6 GB a process, and files that all share",
            f"{CLIP_BYTES * NUM_CAPTIONS / 1e9:.0f} GB",
            NOT_MEASURED,
            NOT_MEASURED,
            (4,),
        ),
        "index": Real(
            f"{indexing:.1f} h on one machine",
            f"{times * INDEX_MEMORY_GIB:.0f} GiB",
            f"{times * INDEX_DISK_GB:.0f} GB",
            dollars=f"{max(indexing * DOLLARS_AN_HOUR, 1):,.0f}",
            sources=(2, 5),
        ),
        "evaluate": Real("19 min of a core", "2.5 GiB", "below 1 GB", sources=(6,)),
    }
