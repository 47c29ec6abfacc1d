"""Made-up videos, odd and broken ones among them; ``tests/videos/README.md`` says what each is."""

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

VIDEOS = Path(__file__).resolve().parents[1] / "videos"
"""The files of which the zoo is made."""

AWKWARD_NAMES = ("-dash id.mp4", "co:lon.mp4", "pct%03d.mp4")
"""Names that no checkout has, since not every file system can."""

HTML = b"<!DOCTYPE html><html><body>Video unavailable</body></html>" * 50
PLAYLIST = "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:5.0,\n{}\n#EXT-X-ENDLIST\n"
CONCATENATION = "ffconcat version 1.0\nfile {}\n"

FLIPPED_IN_PICTURES = (
    47820, 49104, 49301, 49660, 52015, 52309, 52345, 53507, 54302, 54758, 57554, 57759, 59885, 61212, 61729, 62195,
    62730, 63188, 67026, 68457, 69618, 73764, 74147, 74287, 75083, 75481, 76038, 76574, 77089, 77099, 77657, 78181,
    78788, 79095, 79127, 79260, 80790, 83575, 84543, 84625,
)  # fmt: skip
FLIPPED_IN_INDEX = (1680, 1686, 1734, 1740, 1760, 1783, 1799, 1824, 1873, 1885, 1955, 1972)
CLOCK = 314
"""The byte of the picture's time scale (12,288 ticks a second) that is not zero."""


def write_zoo(folder: Path) -> None:
    """Fill ``folder`` with the zoo: the files of ``VIDEOS``, and those that are quickly made of them."""
    shutil.copytree(VIDEOS, folder, dirs_exist_ok=True)
    ok, faststart = ((VIDEOS / name).read_bytes() for name in ("ok_h264.mp4", "ok_faststart.mp4"))
    transport_stream = (VIDEOS / "h264.ts").read_bytes()
    chance = random.Random(0)
    (folder / "secret").mkdir()
    made = {
        **dict.fromkeys(AWKWARD_NAMES, ok),
        "flip_mid.mp4": flipped(faststart, FLIPPED_IN_PICTURES),
        "flip_index.mp4": flipped(faststart, FLIPPED_IN_INDEX),
        "timescale0.mp4": faststart[:CLOCK] + b"\0" + faststart[CLOCK + 1 :],
        "trunc_tail.mp4": faststart[: len(faststart) * 6 // 10],
        "trunc_nomoov.mp4": ok[: len(ok) * 6 // 10],
        "dup_ts.ts": 2 * transport_stream,
        "zero.mp4": b"",
        "random.mp4": chance.randbytes(200_000),
        "ftyp_random.mp4": ok[:32] + chance.randbytes(100_000),
        "html.mp4": HTML,
        "m3u8_local.mp4": PLAYLIST.format("secret/secret.ts").encode(),
        "m3u8_local.m3u8": PLAYLIST.format("secret/secret.ts").encode(),
        "m3u8_http.mp4": PLAYLIST.format("http://127.0.0.1:18999/secret.ts").encode(),
        "concat_rel.mp4": CONCATENATION.format("secret/secret.mp4").encode(),
        "concat_abs.mp4": CONCATENATION.format("/etc/hostname").encode(),
        "secret/secret.mp4": ok,
        "secret/secret.ts": transport_stream,
    }
    for name, content in made.items():
        (folder / name).write_bytes(content)


def flipped(content: bytes, places: Sequence[int]) -> bytes:
    """Return ``content`` with every bit of some bytes inverted."""
    changed = bytearray(content)
    for place in places:
        changed[place] ^= 0xFF
    return bytes(changed)
