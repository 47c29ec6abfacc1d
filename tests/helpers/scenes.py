"""Videos with scene changes, made by the ffmpeg program in many containers, and the frames that it shows of them."""

import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

WIDTH, HEIGHT = 320, 180
COMPARED = 160, 90
"""(width, height) to which pictures are scaled before they are compared."""
SAME_PIXELS = 6.0
"""Mean absolute difference, of 255, below which two pictures are the same. Different scenes differ by 40 and more."""
X264, HEVC = "-c:v libx264 -preset ultrafast -crf 20", "-c:v libx265 -preset ultrafast -crf 20 -x265-params log-level=0"
UNEVEN = "-vf setpts='(N/25+0.3*floor(N/7))/TB' -fps_mode vfr"
KINDS: dict[str, tuple[str, str, str]] = {
    "H.264": ("mp4", "25", f"{X264} -bf 0"),
    "H.264, B-frames": ("mp4", "30000/1001", f"{X264} -bf 3 -g 300"),
    "H.264, pyramid of B-frames": ("mkv", "24000/1001", f"{X264} -bf 5 -x264-params b-adapt=0:b-pyramid=normal:ref=4"),
    "H.264, open groups": ("mp4", "25", f"{X264} -bf 3 -g 50 -x264-params open-gop=1:b-adapt=0"),
    "H.264, uneven times": ("mp4", "25", f"{X264} -bf 2 {UNEVEN}"),
    "H.264, clock from 20 s on": ("mp4", "30", f"{X264} -bf 2 -output_ts_offset 20"),
    "H.264, MPEG-TS": ("ts", "50", f"{X264} -bf 2 -output_ts_offset 4000"),
    "H.264, rotated": ("mp4", "25", f"{X264} -bf 2"),
    "H.264, FLV": ("flv", "15", f"{X264} -bf 2"),
    "H.264, fragments": ("mp4", "60", f"{X264} -bf 2 -g 120 -movflags frag_keyframe+empty_moov+default_base_moof"),
    "HEVC": ("mp4", "25", HEVC),
    "VP9": ("webm", "30", "-c:v libvpx-vp9 -deadline realtime -cpu-used 8 -crf 20 -b:v 0"),
    "VP8": ("webm", "25", "-c:v libvpx -deadline realtime -cpu-used 8 -crf 8 -b:v 2M"),
    "AV1": ("mkv", "24", "-c:v libsvtav1 -preset 12 -crf 25"),
    "MPEG-4, B-frames, AVI": ("avi", "25", "-c:v mpeg4 -q:v 3 -bf 2"),
    "MPEG-2, B-frames": ("mpg", "25", "-c:v mpeg2video -q:v 3 -bf 2"),
    "Theora": ("ogv", "25", "-c:v libtheora -q:v 8"),
    "WMV": ("wmv", "25", "-c:v wmv2 -q:v 3"),
    "Motion JPEG": ("mov", "10", "-c:v mjpeg -q:v 3 -pix_fmt yuvj420p"),
    "GIF": ("gif", "10", ""),
}
"""{kind: suffix, frames a second, options of the ffmpeg program}"""


def write_scenes(kind: str, folder: Path, *, seconds: float, seed: int) -> Path:
    """Write a video of scenes of 1.5 to 4 s, each a field of colours with a square that moves; return its path."""
    suffix, rate, options = KINDS[kind]
    path = folder / f"{seed:02d}_{re.sub(r'[^a-z0-9]+', '_', kind.lower())}.{suffix}"
    made = folder / f"unrotated.{suffix}" if "rotated" in kind else path
    pixels = "" if "pix_fmt" in options or suffix == "gif" else "-pix_fmt yuv420p"
    source = f"-f rawvideo -pix_fmt rgb24 -s {WIDTH}x{HEIGHT} -framerate {rate} -i -"
    rng, written = np.random.default_rng(seed), bytearray()
    numerator, _, denominator = rate.partition("/")
    fps = float(numerator) / float(denominator or 1)
    number = 0
    while number < seconds * fps:
        field = rng.integers(0, 256, (3, 4, 3)).repeat(HEIGHT // 3, axis=0).repeat(WIDTH // 4, axis=1).astype(np.uint8)
        for _ in range(round(rng.uniform(1.5, 4.0) * fps)):
            frame = field.copy()
            left, top = number * 7 % (WIDTH - 60), number * 5 % (HEIGHT - 60)
            frame[top : top + 60, left : left + 60] = 255 - frame[top, left]
            written += frame.tobytes()
            number += 1
    _ffmpeg(f"{source} {options} {pixels} -threads 1", made, bytes(written))
    if made != path:
        _ffmpeg(f"-i {shlex.quote(str(made))} -c copy -metadata:s:v:0 rotate=90", path)
        made.unlink()
    return path


def _ffmpeg(options: str, path: Path, content: bytes = b"") -> bytes:
    command = ["ffmpeg", "-v", "error", "-y", *shlex.split(options), str(path)]
    done = subprocess.run(command, input=content, capture_output=True)
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace")[-300:])
    return done.stdout


@dataclass(frozen=True)
class FfmpegFrames:
    """The frames that the ffmpeg program shows of a video, and when."""

    seconds: np.ndarray
    images: np.ndarray
    """uint8 [T, H, W, 3], of ``COMPARED``."""

    @classmethod
    def of(cls, path: Path) -> "FfmpegFrames":
        """Decode a whole video."""
        width, height = COMPARED
        filters = f"scale={width}:{height}:flags=area,format=rgb24,showinfo"
        command = ["ffmpeg", "-hide_banner", "-threads", "1", "-i", str(path), "-vf", filters, "-fps_mode"]
        command += ["passthrough", "-an", "-f", "rawvideo", "-"]
        done = subprocess.run(command, capture_output=True, check=True)
        seconds = np.array([float(time) for time in re.findall(rb"pts_time:\s*(-?[\d.e+-]+)", done.stderr)])
        images = np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)
        assert len(seconds) == len(images), (path, len(seconds), len(images))
        return cls(seconds, images)

    def at(self, seconds: float) -> np.ndarray:
        """Return the last frame that is not after a second; before the first, the first."""
        return self.images[max(int(np.searchsorted(self.seconds, seconds + 1e-4, side="right")) - 1, 0)]
