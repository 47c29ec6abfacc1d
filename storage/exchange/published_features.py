"""Facts about well-known public feature files, with their sources.

Facts that the authors' code or page does not state are missing here, and are unknown in the profile. The times of
feature vectors may also be unknown: state them with --rate, --spread or --times.
"""

from typing import Any

from ..profiles import CLIP, S3D, SLOWFAST
from ..records import Profile
from .declared_profile import DeclaredFeatures

_FRAME_FACTS = ("short_side_px", "crop_px", "value_range", "mean", "std")


def _frame_facts(profile: Profile) -> dict[str, Any]:
    """Return the facts about frames in a profile, for files whose frames were prepared in the same way."""
    return {name: getattr(profile, name) for name in _FRAME_FACTS}


# linjieli222/HERO_Video_Feature_Extractor: a .npz with ``features`` for each video, float16, one row in 1.5 seconds
# (--clip_len 3/2, its default; QVHighlights' files have 2: pass a JSON file with another fps, window and stride).
# resnets/extract.py: framerate 1/clip_len, short side 224, no crop, L2-normalized rows.
_HERO_ROWS_PER_SECOND = 1 / 1.5

# facebookresearch/fairseq, examples/MMPT, scripts/video_feature_extractor (how2/s3d.sh, extract.py, preprocessing.py):
# a .npy for each video; 30 frames a window at 30 frames a second, black frames at the end, the 512 values of the video
# embedding, L2-normalized rows.
_MMPT_S3D = DeclaredFeatures(
    facts={
        "name": "mmpt_s3d",
        "model": S3D.model,
        "weights": S3D.weights,
        "fps": 30,
        "window": 30,
        "stride": 30,
        **_frame_facts(S3D),
        "tail": S3D.tail,
        "layer": "video_embedding (fc of mixed_5c), rows of length 1",
        "dimension": 512,
    },
    source="facebookresearch/fairseq, examples/MMPT/scripts/video_feature_extractor",
)


def _hero(name: str, model: str, weights: str, layer: str, dimension: int, **more: object) -> DeclaredFeatures:
    facts = {"name": f"hero_{name}", "model": model, "weights": weights, "layer": layer, "dimension": dimension}
    return DeclaredFeatures(facts=facts | more, key="features", source="linjieli222/HERO_Video_Feature_Extractor")


def _mmt(expert: str, dimension: int, *, has_times: bool = False, **more: object) -> DeclaredFeatures:
    return DeclaredFeatures(
        facts={"name": f"mmt_{expert}", "dimension": dimension} | more,
        pattern="*/*/*/{id}.h5",
        key=f"features.{expert}",
        times=f"features_t.{expert}" if has_times else None,
        source="gabeur/mmt, base/base_dataset.py and utils/expert_timings.py",
    )


def _experts(name: str, dimension: int, **more: object) -> DeclaredFeatures:
    return DeclaredFeatures(
        facts={"name": f"ce_{name}", "dimension": dimension} | more,
        source="albanie/collaborative-experts, and gabeur/mmt, utils/util.py, which reads the same files",
    )


def _clip4clip(name: str, model: str) -> DeclaredFeatures:
    # slice_framepos 2 takes up to 20 (12 in CLIP4Clip) of the frames at 1 a second, spread evenly. The weights were
    # fine-tuned on the data set.
    return DeclaredFeatures(
        facts={
            "name": name,
            "model": model,
            "fps": None,
            "window": 1,
            "stride": 1,
            **_frame_facts(CLIP),
            "resize": CLIP.resize,
            "tail": CLIP.tail,
            "layer": CLIP.layer,
            "dimension": 512,
        },
        source="ArrowLuo/CLIP4Clip, dataloaders; liupeng0606/clip4caption, feature_extractor",
    )


_ROWS = (
    _hero(
        "resnet152",
        "ResNet-152",
        "torchvision's, trained on ImageNet",
        "mean over space, rows of length 1",
        2048,
        fps=_HERO_ROWS_PER_SECOND,
        window=1,
        stride=1,
        short_side_px=224,
        crop_px=None,
    ),
    _hero(
        "slowfast",
        SLOWFAST.model,
        "SLOWFAST_8x8_R50.pkl",
        SLOWFAST.layer,
        SLOWFAST.dimension,
        fps=30,
        window=45,
        stride=45,
        **_frame_facts(SLOWFAST),
    ),
    # mil-nce/extract.py and preprocessing.py (VALUE): windows of 45 frames, 32 of them used.
    _hero(
        "s3d",
        S3D.model,
        S3D.weights,
        S3D.layer,
        S3D.dimension,
        fps=30,
        window=45,
        stride=45,
        **_frame_facts(S3D),
    ),
    # clip/extract.py: framerate 1/clip_len, 224 pixels, centre crop, image embeddings as they are.
    _hero(
        "clip_vit_b32",
        CLIP.model,
        "ViT-B/32 of OpenAI",
        "image embedding",
        512,
        fps=_HERO_ROWS_PER_SECOND,
        window=1,
        stride=1,
        short_side_px=224,
        crop_px=224,
    ),
    _MMPT_S3D,
    # Files of the ECCV 2020 paper: one HDF5 file for each video, with all experts and captions. It has the times of s3d
    # and vggish; expert_timings defines constant times for rgb and scene, and no times for face, ocr and speech.
    _mmt("s3d", 1024, has_times=True, model="S3D"),
    _mmt("vggish", 128, has_times=True, model="VGGish"),
    _mmt("rgb", 2048, fps=5),
    _mmt("scene", 2208, fps=1),
    _mmt("face", 512),
    _mmt("ocr", 300),
    _mmt("speech", 300),
    # Pickles {id: array}, one for each expert. MMT reads files *-fixed_seg.pickle with one row a second.
    _experts("i3d", 1024, model="I3D"),
    _experts("resnext101", 2048, model="ResNeXt-101 32x48d"),
    _experts("senet154", 2048, model="SENet-154"),
    _experts("r2p1d", 512, model="R(2+1)D-34"),
    _experts("s3dg", 1024, model="S3D-G"),
    _experts("densenet161", 2208, model="DenseNet-161"),
    _experts("vggish", 128, model="VGGish"),
    _clip4clip("clip4clip_vit_b32", CLIP.model),
    _clip4clip("clip4clip_vit_b16", "CLIP ViT-B/16"),
)
PUBLISHED: dict[str, DeclaredFeatures] = {str(row.facts["name"]): row for row in _ROWS}
"""By name, as ``vlalign-store import --profile`` takes it."""
