"""Models of timm by name: pixels and features are those of timm's own transform and model."""

import numpy as np
import pytest
import timm
import torch
from helpers.hub_models import windows_of
from helpers.videos import scene
from PIL import Image
from timm.data import create_transform, resolve_model_data_config
from timm.models import save_for_hf
from vlalign.extract import extract_video, load_extractor
from vlalign.extract.encoders import hub
from vlalign.extract.videos.demo import render_video
from vlalign.storage import UserError

pytestmark = pytest.mark.portable

MODELS = ("test_vit", "test_efficientnet", "test_convnext")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("timm")
    made = {}
    for name in MODELS:
        torch.manual_seed(0)
        made[name] = timm.create_model(name, pretrained=False).eval()
        save_for_hf(made[name], folder / name, safe_serialization=True)
    return folder, made


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", [(342, 200), (200, 342), (90, 78)], ids="{0[0]}x{0[1]}".format)
def test_features_are_timms_own(models, tmp_path, name, size):
    """Sizes at which the cut is a pixel off in timm's way."""
    folder, made = models
    width, height = size
    render_video(scene(2.0, width=width, height=height), tmp_path / "x.mp4")
    frames = [Image.fromarray(row[0]) for row in windows_of(tmp_path / "x.mp4", 1, 1)]
    transform = create_transform(**resolve_model_data_config(made[name]), is_training=False)
    with torch.inference_mode():
        maps = made[name].forward_features(torch.stack([transform(frame) for frame in frames]))
        expected = made[name].forward_head(maps, pre_logits=True).numpy()
    assert expected.std(axis=0).max() > 1e-3 * np.abs(expected).max()
    extractor = load_extractor(f"hf:{folder / name}")
    found = extract_video(tmp_path / "x.mp4", [extractor])[name].features
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_without_timm_the_error_says_what_to_install(models, monkeypatch):
    folder, _ = models
    monkeypatch.setattr(hub, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"install 'timm>=[\d.]+'"):
        load_extractor(f"hf:{folder / 'test_vit'}")
