"""Rules for profiles used in extraction. Imported features may have been made in any way."""

from dataclasses import asdict
from fractions import Fraction

from ...storage.profiles import PROFILES
from ...storage.records import EXACT, NVDEC, Profile
from ..decoding.kernels import KERNELS, KERNELS_HELP
from ..decoding.sampling import TAILS

PRECISIONS = ("fp32", "bf16", "fp16")
DECODINGS = (EXACT, NVDEC)
VALUE_RANGES = {"0..1": 255, "0..255": 1}
"""{value range: divisor of an image's bytes}"""
MAX_FPS_DENOMINATOR = 64
MAX_FPS, MAX_SIDE_PX, MAX_NAME = 1000, 4320, 200
"""A larger value is a typing error: every video, or the creation of the store's folder, would fail."""


def is_exact_rate(fps: float | None) -> bool:
    """Return whether frames can be taken at exactly this rate: a multiple of 1/64, at most ``MAX_FPS``."""
    return fps is not None and 0 < fps <= MAX_FPS and Fraction(fps).denominator <= MAX_FPS_DENOMINATOR


def check_extractable(profile: Profile) -> None:
    """Check that features can be extracted with a profile. Imported features may have been made in any way.

    Raises:
        ValueError: They cannot. The message lists all wrong fields.
    """
    known = PROFILES.get(profile.name)
    if known is not None and (known.modality == "sound" or known.is_shots):  # there is only one way to compute them
        expected, stated = asdict(known), asdict(profile)
        wrong = [
            f"{name} is {stated[name]!r}, expected {expected[name]!r}"
            for name in expected
            if not (known.is_shots and name == "decoding") and stated[name] != expected[name]
        ]
    else:
        tails = TAILS if profile.window > 1 else (*TAILS, "none")
        rules = {
            "name": (len(profile.name) <= MAX_NAME, f"at most {MAX_NAME} characters"),
            "fps": (
                is_exact_rate(profile.fps) or (profile.fps is None and profile.window > 1),
                f"a whole number up to {MAX_FPS:,}, or one such as 7.5 (in {MAX_FPS_DENOMINATOR}ths); none spreads a "
                "window of several frames over the whole video",
            ),
            "short_side_px": (0 < profile.short_side_px <= MAX_SIDE_PX, f"1 to {MAX_SIDE_PX:,}"),
            "crop_px": (
                profile.crop_px is None or profile.crop_px <= profile.short_side_px,
                "no more than short_side_px",
            ),
            "resize": (profile.resize in KERNELS, KERNELS_HELP),
            "value_range": (profile.value_range in VALUE_RANGES, " or ".join(map(repr, VALUE_RANGES))),
            "std": (all(value > 0 for value in profile.std), "numbers above 0"),
            "tail": (profile.tail in tails, " or ".join(map(repr, tails))),
            "precision": (profile.precision in PRECISIONS, " or ".join(PRECISIONS)),
            "decoding": (profile.decoding in DECODINGS, " or ".join(DECODINGS)),
            "layer": (not profile.is_shots, "another layer: only the profile 'shots' has this one"),
            "unknown": (not profile.unknown, "no unknown facts"),
        }
        wrong = [
            f"{name} is {getattr(profile, name)!r}, expected {expected}"
            for name, (right, expected) in rules.items()
            if not right
        ]
    if wrong:
        raise ValueError(f"profile {profile.name!r} cannot be used for extraction: {'; '.join(wrong)}")
