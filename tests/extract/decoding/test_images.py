"""Still images as videos of one frame: what is read of them, how many rows they give, and what is refused."""

import io
import itertools
import re
import struct
import subprocess
import zlib

import numpy as np
import pytest
from helpers.needs import needs_program
from helpers.videos import touch
from PIL import Image
from vlalign.extract.cli.extract import main as extract
from vlalign.extract.decoding.decode import DecodedThumbnail, DecodingFinished, DecodingStarted, decode_video
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.decoding.images import FORMATS, is_image, probe_image, read_image
from vlalign.extract.decoding.kernels import scaled_size
from vlalign.extract.decoding.sampling import Window, window_times
from vlalign.extract.pipeline.probing import probe_videos
from vlalign.extract.pipeline.video_jobs import frame_spec_of
from vlalign.extract.videos.selection import list_folder
from vlalign.storage import FeatureStore
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.files import read_jsonl
from vlalign.storage.common.problems import Problems
from vlalign.storage.profiles import LOGMEL, PROFILES

PICTURED = [profile for profile in PROFILES.values() if profile.name != LOGMEL and not profile.is_shots]
HEIGHT, WIDTH = 48, 70
NOISE = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
SMOOTH = np.stack(
    np.broadcast_arrays(
        np.linspace(0, 255, WIDTH)[None], np.linspace(0, 255, HEIGHT)[:, None], np.full((HEIGHT, WIDTH), 90)
    ),
    axis=-1,
).astype(np.uint8)


def saved(path, picture=NOISE, **options):
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    image.save(path, **options)
    return path


def rows_of(path, profiles):
    """{features: its rows' frames}, the thumbnails' seconds, and what was said at the end."""
    parts = list(decode_video(probe_image(path), [frame_spec_of(profile) for profile in profiles]))
    assert isinstance(parts[0], DecodingStarted) and parts[0].decoder == "Pillow"
    rows = {
        profile.name: [p.frames for p in parts if isinstance(p, Window) and p.spec_index == n]
        for n, profile in enumerate(profiles)
    }
    return (
        rows,
        [p.seconds for p in parts if isinstance(p, DecodedThumbnail)],
        next(p for p in parts if isinstance(p, DecodingFinished)),
    )


def difference(picture, expected) -> float:
    return np.abs(picture.astype(int) - expected).mean()


def failure_of(path):
    with pytest.raises(VideoError) as failed:
        probe_image(path)
        read_image(path)
    assert "\n" not in str(failed.value)
    return failed.value.kind, str(failed.value)


# Rows


@pytest.mark.parametrize("suffix", ["png", "jpg", "JPEG", "webp", "AVIF", "jfif"])
def test_an_image_is_one_row_of_every_profile(tmp_path, suffix):
    rows, thumbnails, finished = rows_of(saved(tmp_path / f"a.{suffix}"), PICTURED)
    assert thumbnails == [0.0] and finished.partial == "" and finished.decoder.startswith("Pillow ")
    for place, profile in enumerate(PICTURED):
        (frames,) = rows[profile.name]
        assert finished.num_frames[place] == 1
        starts, ends, valid = window_times(
            1, 0, profile.window, profile.fps, finished.duration_seconds, stride=profile.stride
        )
        assert (starts.tolist(), ends.tolist(), valid.tolist()) == (
            [0],
            [pytest.approx(max(1 / profile.fps, 1 / 25))],
            [1],
        )
        if profile.window > 1:  # the profile's tail rule, as for a video of one frame
            rest = np.zeros_like(frames[:1]) if profile.tail == "black frames" else frames[:1]
            assert len(frames) == profile.window and frames[0].any() and (frames[1:] == rest).all()


def test_clip_sees_the_pixels_that_pillow_makes(tmp_path):
    for name in ("a.png", "a.jpg"):
        path = saved(tmp_path / name)
        rows, _, _ = rows_of(path, [PROFILES["clip_vit_b32"]])
        with Image.open(path) as image:
            height, width = scaled_size(HEIGHT, WIDTH, 224)
            scaled = np.asarray(image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC))
        left = (width - 224) // 2
        np.testing.assert_array_equal(rows["clip_vit_b32"][0], scaled[:, left : left + 224])


@needs_program
@pytest.mark.parametrize("picture", [SMOOTH, NOISE], ids=["smooth", "noise"])
def test_other_networks_get_the_pixels_of_the_ffmpeg_program(tmp_path, picture):
    path = saved(tmp_path / "a.png", picture)
    height, width = scaled_size(HEIGHT, WIDTH, 224)
    filters = ["-vf", f"scale={width}:{height}:flags=bilinear", "-pix_fmt", "rgb24", "-f", "rawvideo", "-"]
    done = subprocess.run(["ffmpeg", "-v", "error", "-i", path, *filters], capture_output=True, check=True)
    rows, _, _ = rows_of(path, [PROFILES["resnet152"]])
    np.testing.assert_array_equal(rows["resnet152"][0], np.frombuffer(done.stdout, np.uint8).reshape(height, width, 3))


# Pictures

TURNED = {
    1: lambda p: p,
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.transpose(1, 0, 2),
    6: lambda p: np.rot90(p, 1),
    7: lambda p: p[::-1, ::-1].transpose(1, 0, 2),
    8: lambda p: np.rot90(p, -1),
}
"""EXIF's orientation, and how a camera held so sees the upright picture."""


@pytest.mark.parametrize("orientation", TURNED)
def test_exif_orientation_is_applied(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    seen = np.ascontiguousarray(TURNED[orientation](SMOOTH))
    np.testing.assert_array_equal(read_image(saved(tmp_path / "a.png", seen, exif=exif)), SMOOTH)
    path = saved(tmp_path / "a.jpg", seen, exif=exif, quality=95)
    assert difference(read_image(path), SMOOTH) < 3
    assert (read_image(saved(tmp_path / "a.webp", seen, exif=exif, lossless=True)) == SMOOTH).all()
    assert difference(read_image(saved(tmp_path / "a.avif", seen, exif=exif, quality=95)), SMOOTH) < 3
    rows, _, _ = rows_of(path, [PROFILES["resnet152"]])
    assert rows["resnet152"][0].shape == (*scaled_size(HEIGHT, WIDTH, 224), 3)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_an_image_with_a_damaged_exif_block_is_read(tmp_path):
    random, exif, small = np.random.default_rng(0), Image.Exif(), SMOOTH[::16, ::16]
    exif[0x0112], exif[0x010F] = 6, "a camera"
    ways = {np.ascontiguousarray(turn(small)).tobytes() for turn in TURNED.values()}
    blocks = [b"", b"no tiff", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\xff\xff"]
    for _ in range(200):
        block = bytearray(exif.tobytes())
        for place in random.integers(6, len(block), 3):
            block[place] = random.integers(256)
        blocks.append(bytes(block[: random.integers(6, len(block) + 1)]))
    for block in blocks:
        assert read_image(saved(tmp_path / "a.png", small, exif=block)).tobytes() in ways
        assert (
            read_image(saved(tmp_path / "a.jpg", small, exif=b"Exif\0\0" + block.removeprefix(b"Exif\0\0"))).size
            == small.size
        )


GREY = SMOOTH[..., 0]
MODES = {
    "grey": (Image.fromarray(GREY), "png"),
    "grey of 16 bits": (Image.fromarray(GREY.astype(np.uint16) << 8), "png"),
    "grey JPEG": (Image.fromarray(GREY), "jpg"),
    "palette": (Image.fromarray(SMOOTH).quantize(256), "png"),
    "CMYK": (Image.fromarray(SMOOTH).convert("CMYK"), "jpg"),
    "progressive": (Image.fromarray(SMOOTH), "jpg"),
    "black and white": (Image.fromarray(GREY).convert("1", dither=Image.Dither.NONE), "png"),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_kind_of_pixel_becomes_rgb(tmp_path, mode):
    image, suffix = MODES[mode]
    options = {"quality": 95, "progressive": mode == "progressive"} if suffix == "jpg" else {}
    got = read_image(saved(tmp_path / f"a.{suffix}", image, **options))
    expected = np.repeat(GREY[..., None], 3, axis=-1) if "grey" in mode else SMOOTH
    if mode == "black and white":
        expected = np.where(GREY >= 128, 255, 0)[..., None]
    assert got.shape == SMOOTH.shape and got.dtype == np.uint8
    assert np.abs(got.astype(int) - expected).mean() < (6 if mode == "palette" else 3)


ALPHA = SMOOTH[..., 1]
GREY_AND_ALPHA = Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(ALPHA)])


def over_white(pixels: np.ndarray) -> np.ndarray:
    return pixels * (ALPHA[..., None] / 255) + 255 - ALPHA[..., None]


@pytest.mark.parametrize("suffix", ["png", "webp", "avif"])
def test_what_is_transparent_is_laid_over_white(tmp_path, suffix):
    options = {"png": {}, "webp": {"lossless": True}, "avif": {"quality": 100}}[suffix]
    shown = read_image(saved(tmp_path / f"a.{suffix}", np.dstack([SMOOTH, ALPHA]), **options))
    assert difference(shown, over_white(SMOOTH)) < 3 and (shown[0] == 255).all()
    grey = read_image(saved(tmp_path / f"g.{suffix}", GREY_AND_ALPHA, **options))
    assert difference(grey, over_white(np.stack([GREY] * 3, axis=-1))) < 3
    opaque = np.dstack([NOISE, np.full((HEIGHT, WIDTH), 255, np.uint8)])
    same = read_image(saved(tmp_path / f"b.{suffix}", opaque, **options))
    with Image.open(tmp_path / f"b.{suffix}") as image:
        np.testing.assert_array_equal(same, np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGB"])
def test_a_colour_that_is_transparent_becomes_white(tmp_path, mode):
    squares = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    squares[:, 20:] = 255 if mode == "1" else 204
    image = Image.fromarray(squares).convert(mode)
    shown = read_image(saved(tmp_path / "a.png", image, transparency=image.getpixel((0, 0))))
    assert (shown[:, :20] == 255).all() and (shown[:, 20:] == squares[:, 20:]).all()


@pytest.mark.parametrize(("name", "form"), [("a.png", "PNG"), ("a.jpg", "MPO"), ("a.webp", "WEBP"), ("a.avif", "AVIF")])
def test_the_first_of_several_pictures_is_used(tmp_path, name, form):
    path = saved(tmp_path / name, SMOOTH, format=form, save_all=True, append_images=[Image.fromarray(255 - SMOOTH)])
    assert np.abs(read_image(path).astype(int) - SMOOTH).mean() < 3
    assert len(rows_of(path, [PROFILES["resnet152"]])[0]["resnet152"]) == 1


# What is refused


def png_of_size(width, height):
    """A PNG that says that it is so large, and holds next to nothing."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("size", [(8000, 8000), (12000, 8000), (100_000, 100_000), (3000, 200), (1, 11)])
def test_images_have_the_size_limits_of_frames(tmp_path, size):
    path = tmp_path / "a.png"
    path.write_bytes(png_of_size(*size))
    kind, reason = failure_of(path)
    assert kind == "too_large" and ("50,000,000" in reason or re.search(r"\b10\b", reason))


@pytest.mark.parametrize("form", FORMATS)
def test_a_truncated_image_is_a_failure(tmp_path, form):
    whole = io.BytesIO()
    Image.fromarray(NOISE).save(whole, form)
    content = whole.getvalue()
    for length in (0, 1, 3, 10, 20, 60, len(content) // 2, len(content) - 100):
        (tmp_path / "a.jpg").write_bytes(content[:length])
        kind, message = failure_of(tmp_path / "a.jpg")
        assert kind == "unreadable" and re.search("empty" if length == 0 else r"^not a |damaged or cut off", message)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_damage_gives_a_picture_or_a_typed_failure(tmp_path):
    random = np.random.default_rng(0)
    exif = Image.Exif()
    exif[0x0112] = 6
    outcomes = set()
    for form, _ in itertools.product(FORMATS, range(150)):
        whole = io.BytesIO()
        Image.fromarray(NOISE[:8, :9]).save(whole, form, exif=exif)
        content = bytearray(whole.getvalue())
        for place in random.integers(0, len(content), 3):
            content[place] = random.integers(256)
        (tmp_path / "a.png").write_bytes(content)
        try:
            probe_image(tmp_path / "a.png")
            outcomes.add(str(read_image(tmp_path / "a.png").ndim))
        except VideoError as error:
            outcomes.add(error.kind)
    assert {"3", "unreadable"} <= outcomes <= {"3", "unreadable", "too_large"}


def test_awkward_image_names_open_the_file_of_that_name(tmp_path, monkeypatch):
    """To FFmpeg, the first three are whole sequences of files."""
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        saved(tmp_path / f"img{number:03d}.png", np.full_like(NOISE, number))
    for name in ("img%03d.png", "img*.png", "img%d.png", "file:img000.png", "-i.png", "concat:img000.png|img001.png"):
        path = saved(tmp_path / name, NOISE)
        np.testing.assert_array_equal(read_image(path.relative_to(tmp_path)), NOISE)
        assert len(rows_of(path.relative_to(tmp_path), [PROFILES["resnet152"]])[0]["resnet152"]) == 1
        path.unlink()
        assert failure_of(path.relative_to(tmp_path))[0] == "missing"


@pytest.mark.parametrize(
    "content",
    [
        b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:0.6,\nsecret.png\n#EXT-X-ENDLIST\n",
        b"ffconcat version 1.0\nfile secret.png\n",
        b'<svg xmlns:xlink="http://www.w3.org/1999/xlink"><image xlink:href="secret.png"/></svg>',
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(secret.png) run\n",
        b"GIF89a\1\0\1\0\0\0\0",
        b"P6 1 1 255 abc",
        b"no image",
    ],
)
def test_other_files_under_an_images_name_are_refused(tmp_path, content):
    saved(tmp_path / "secret.png")
    (tmp_path / "a.png").write_bytes(content)
    kind, message = failure_of(tmp_path / "a.png")
    assert (kind, message) == ("unreadable", "not a JPEG, PNG, WebP or AVIF image; convert it to one")


# The command


def test_images_are_taken_from_a_folder_without_videos(tmp_path, capsys):
    touch(tmp_path, "a/b.jpg", "c.PNG", "d.jpeg", "e.webp", "f.txt")
    problems = Problems()
    found = list_folder(tmp_path, problems, instead=(".jpg", ".jpeg", ".png"))
    assert [v.video_id for v in found] == ["a/b", "c", "d"] and all(is_image(tmp_path / v.path) for v in found)
    said = capsys.readouterr().err
    assert "2 files" in said and "1 .webp" in said and "1 .txt" in said
    touch(tmp_path, "c.mp4")
    assert [v.video_id for v in list_folder(tmp_path, problems, instead=(".jpg", ".jpeg", ".png"))] == ["c"]
    assert re.search(rf"{re.escape(str(tmp_path))}: 3 ", capsys.readouterr().err)
    assert problems.count == 0
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match=r"none.*\.jpg \.mp4"):
        list_folder(tmp_path / "none", problems, suffixes=(".mp4",), instead=(".jpg",))


def test_a_child_probes_images_and_says_that_they_have_no_sound(tmp_path):
    saved(tmp_path / "whole.png")
    (tmp_path / "cut.jpg").write_bytes(b"\xff\xd8\xff")
    videos = [(name, tmp_path / name) for name in ("whole.png", "cut.jpg", "none.jpg")]
    probed = dict(probe_videos(videos, [PROFILES[name] for name in ("s3d", "resnet152", LOGMEL)], 1))
    assert probed["whole.png"].num_rows == {"s3d": 1, "resnet152": 1}
    assert {name: error.kind for name, error in probed["whole.png"].failures.items()} == {LOGMEL: "no_sound"}
    assert (probed["cut.jpg"].kind, probed["none.jpg"].kind) == ("unreadable", "missing")


def test_the_command_extracts_a_folder_of_images(tmp_path, capsys):
    images = tmp_path / "images"
    images.mkdir()
    for name in ("a.jpg", "c.webp", "d.AVIF"):
        saved(images / name, SMOOTH)
    (images / "b.png").write_bytes(b"")
    call = [
        "--root",
        str(tmp_path),
        "--dataset",
        "mine",
        "--features",
        "resnet152",
        "--weights",
        "random",
        "--videos",
        str(images),
    ]
    assert extract(call) == 1
    store = FeatureStore(tmp_path / "mine/features/resnet152")
    made = store.get("a")
    assert (
        sorted(store.video_ids()) == ["a", "c", "d"]
        and made.features.shape == (1, 2048)
        and np.isfinite(made.features).all()
    )
    assert (made.start_seconds.tolist(), made.end_seconds.tolist(), made.valid_frames.tolist()) == ([0.0], [1.0], [1])
    assert made.decoder.startswith("Pillow ") and made.partial == ""
    (failed,) = read_jsonl(tmp_path / "mine/features/resnet152/failures.jsonl")
    assert (failed["video_id"], failed["kind"]) == ("b", "unreadable")
    capsys.readouterr()
    assert extract(call) == 1  # and nothing is done twice
    assert "tried" not in capsys.readouterr().err
