"""Small models of transformers that read pictures and texts, with tokenizers of their published kinds."""

import json
import re
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES

from .clips_of_text import word_tokenizer
from .hub_models import CROPPED, FRAMED, FRAMES, MIXED, SIDE, SMALL, SQUARE, LlavaOnevisionVideoProcessor

TEXTS = ["a dog catches a frisbee", "A Red BALL, rolls (away)!", "", "  two   Spaces ", "Über den Fluß"]
CORPUS = [*TEXTS, *(text.lower() for text in TEXTS), string.ascii_letters, string.digits, string.punctuation]
TOO_LONG = " ".join(f"Word{number}," for number in range(100))
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def gemma_tokenizer(folder: Path) -> None:
    """Write SigLIP 2's tokenizer as it is published: Gemma's, with capitals, without a mask, padded at the end."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300, special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
    _save(tokenizer, folder, "GemmaTokenizer", {"model_input_names": ["input_ids"], "model_max_length": 64})


def t5_tokenizer(folder: Path, kind: str = "SiglipTokenizer", ends: bool = True) -> None:
    """Write SigLIP's tokenizer, or VideoPrism's: T5's kind, of which ``tokenizer.json`` keeps capitals."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")]
    )
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=special, unk_token="<unk>")
    tokenizer.train_from_iterator(CORPUS, trainer)
    if ends:
        tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    named = {"eos_token": "</s>", "pad_token": "</s>" if kind == "SiglipTokenizer" else "<pad>", "bos_token": None}
    mask = {"model_input_names": ["input_ids"]} if kind == "SiglipTokenizer" else {}
    _save(tokenizer, folder, kind, {**named, **mask, "model_max_length": 64})


def bert_tokenizer(folder: Path) -> None:
    """Write a tokenizer of BERT's kind."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=250, special_tokens=[*special.values()]))
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    _save(tokenizer, folder, "BertTokenizer", {**special, "bos_token": None, "eos_token": None})


def roberta_tokenizer(folder: Path) -> None:
    """Write a tokenizer of XLM-RoBERTa's kind, whose padding token has the id 1."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=special, unk_token="<unk>")
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    named = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>"}
    _save(tokenizer, folder, "XLMRobertaTokenizer", named)


def tips_tokenizer(folder: Path) -> None:
    """Write TIPSv2's tokenizer, which lower-cases texts itself."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")]
    )
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300, special_tokens=["<pad>", "<unk>"]))
    _save(tokenizer, folder, "Tipsv2Tokenizer", {"bos_token": None, "eos_token": None, "model_max_length": 64})


def clip_tokenizer(folder: Path, max_tokens: int = 77) -> None:
    """Write CLIP's tokenizer."""
    tokenizer = word_tokenizer(CORPUS)
    tokenizer.model_max_length = max_tokens
    tokenizer.save_pretrained(folder)


def _save(tokenizer: Tokenizer, folder: Path, kind: str, named: dict[str, Any]) -> None:
    usual = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}
    given = {name: value for name, value in (usual | {"padding_side": "right"} | named).items() if value is not None}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **given).save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": kind}))


def _texts(positions: int = 40, **more: Any) -> dict[str, Any]:
    return SIZES | {"vocab_size": 300, "max_position_embeddings": positions, "pad_token_id": 0} | more


def _of(model: str, text: dict[str, Any], vision: dict[str, Any] = SMALL, **more: Any) -> Callable[[], Any]:
    return lambda: getattr(transformers, f"{model}Config")(text_config=text, vision_config=vision, **more)


CLIPS = _texts(77, bos_token_id=1, eos_token_id=2)  # "legacy" ids: CLIP's family then reads the highest id's place
ENDED = CLIPS | {"eos_token_id": word_tokenizer(CORPUS).eos_token_id}
Family = tuple[Callable[[], Any], Callable[[Path], None], dict[str, Any]]
SIGLIP_KWARGS: dict[str, Any] = {"padding": "max_length", "max_length": 64, "truncation": True}
"""Those of transformers' zero-shot pipeline for SigLIP."""
LONGEST: dict[str, Any] = {"padding": True, "truncation": True, "max_length": 77}
SHORTER = LONGEST | {"max_length": 40}
FAMILIES: dict[str, Family] = {
    "siglip": (_of("Siglip", _texts(64, pad_token_id=1)), t5_tokenizer, SIGLIP_KWARGS),
    "siglip2": (_of("Siglip", _texts(64)), gemma_tokenizer, SIGLIP_KWARGS),
    "siglip2_naflex": (_of("Siglip2", _texts(64), SMALL | {"num_patches": 16}), gemma_tokenizer, SIGLIP_KWARGS),
    "clip": (_of("CLIP", CLIPS, projection_dim=32), clip_tokenizer, LONGEST),
    "aimv2": (_of("Aimv2", ENDED, projection_dim=32), clip_tokenizer, LONGEST),
    "metaclip_2": (_of("MetaClip2", ENDED, projection_dim=32), clip_tokenizer, LONGEST),
    "xclip": (_of("XCLIP", CLIPS, FRAMED | MIXED, projection_dim=32), clip_tokenizer, LONGEST),
    "clipseg": (_of("CLIPSeg", CLIPS, projection_dim=32), clip_tokenizer, LONGEST),
    "groupvit": (
        _of(
            "GroupViT",
            CLIPS,
            SIZES
            | {
                "image_size": SIDE,
                "patch_size": 8,
                "depths": [1, 1, 1],
                "num_group_tokens": [8, 4, 0],
                "num_output_groups": [8, 4, 0],
            },
            projection_dim=32,
            projection_intermediate_dim=64,
        ),
        clip_tokenizer,
        LONGEST,
    ),
    "owlvit": (
        _of("OwlViT", _texts(16, bos_token_id=1, eos_token_id=2), projection_dim=32),
        lambda folder: clip_tokenizer(folder, 16),
        {"padding": "max_length", "truncation": True, "max_length": 16},
    ),
    "chinese_clip": (_of("ChineseCLIP", _texts(), projection_dim=32), bert_tokenizer, SHORTER),
    "altclip": (
        _of("AltCLIP", _texts(202, pad_token_id=1, project_dim=32, type_vocab_size=1), projection_dim=32),
        roberta_tokenizer,
        LONGEST | {"max_length": 200},
    ),
    "blip": (
        _of("Blip", _texts(encoder_hidden_size=32, projection_dim=32), projection_dim=32, image_text_hidden_size=32),
        bert_tokenizer,
        SHORTER,
    ),
    "align": (
        _of(
            "Align",
            _texts(),
            {
                "image_size": SIDE,
                "in_channels": [32],
                "out_channels": [32],
                "kernel_sizes": [3],
                "strides": [1],
                "num_block_repeats": [1],
                "expand_ratios": [1],
                "depthwise_padding": [],
                "hidden_dim": 32,
                "width_coefficient": 1.0,
            },
            projection_dim=32,
        ),
        bert_tokenizer,
        SHORTER | {"padding": "max_length"},
    ),
    "tipsv2": (
        _of("Tipsv2", _texts(64), {key: SMALL[key] for key in SMALL if key != "intermediate_size"}),
        tips_tokenizer,
        SIGLIP_KWARGS,
    ),
    "videoprism": (
        _of(
            "VideoPrism",
            SIZES | {"vocab_size": 300, "max_position_embeddings": 64},
            SIZES
            | {
                "image_size": 36,
                "num_frames": FRAMES,
                "tubelet_size": [1, 18, 18],
                "num_spatial_layers": 1,
                "num_temporal_layers": 1,
                "num_auxiliary_layers": 1,
            },
        ),
        lambda folder: t5_tokenizer(folder, "VideoPrismTokenizer", ends=False),
        SIGLIP_KWARGS,
    ),
    "dual": (
        lambda: transformers.VisionTextDualEncoderConfig.from_vision_text_configs(
            transformers.ViTConfig(**SMALL), transformers.BertConfig(**_texts()), projection_dim=32
        ),
        bert_tokenizer,
        SHORTER,
    ),
    "dual_roberta": (
        lambda: transformers.VisionTextDualEncoderConfig.from_vision_text_configs(
            transformers.ViTConfig(**SMALL),
            transformers.XLMRobertaConfig(**_texts(202, pad_token_id=1)),
            projection_dim=32,
        ),
        roberta_tokenizer,
        LONGEST | {"max_length": 200},
    ),
}
"""{name: (its configuration, its tokenizer, how transformers' own pages and pipeline tokenize texts for it)}"""


PICTURES: dict[str, tuple[str, Callable[[], Any]]] = {
    "siglip": ("SiglipProcessor", lambda: transformers.SiglipImageProcessor(size=SQUARE)),
    "siglip2": ("SiglipProcessor", lambda: transformers.SiglipImageProcessor(size=SQUARE, resample=2)),
    "siglip2_naflex": ("Siglip2Processor", lambda: transformers.Siglip2ImageProcessor(patch_size=8)),
    "xclip": ("XCLIPProcessor", lambda: transformers.VideoMAEImageProcessor(**CROPPED)),
    "owlvit": ("OwlViTProcessor", lambda: transformers.OwlViTImageProcessor(size=SQUARE, crop_size=SQUARE)),
    "chinese_clip": ("ChineseCLIPProcessor", lambda: transformers.ChineseCLIPImageProcessor(**CROPPED)),
    "altclip": ("AltCLIPProcessor", lambda: transformers.CLIPImageProcessor(**CROPPED)),
    "blip": ("BlipProcessor", lambda: transformers.BlipImageProcessor(size=SQUARE)),
    "align": (
        "AlignProcessor",
        lambda: transformers.EfficientNetImageProcessor(
            size={"height": SIDE + 4, "width": SIDE + 4},
            crop_size=SQUARE,
            do_center_crop=True,
            do_normalize=False,
            rescale_factor=1 / 127.5,
            rescale_offset=True,
            include_top=False,
            resample=2,
        ),
    ),
    "tipsv2": ("Tipsv2Processor", lambda: transformers.Tipsv2ImageProcessor(size=SQUARE)),
    "videoprism": (
        "VideoPrismProcessor",
        lambda: LlavaOnevisionVideoProcessor(size={"height": 36, "width": 36}, do_normalize=False),
    ),
}
"""{name: (the class of its processor, the part of it for pictures)}; the others have CLIP's."""


def save_dual_encoder(name: str, folder: Path) -> Path:
    """Write a small model of a family with random weights, as it is published; return the folder."""
    config, save_tokenizer, _ = FAMILIES[name]
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config()).eval()
    for parameter in model.parameters():  # some begin at 0 or 1
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    save_tokenizer(folder)
    kind, pictures = PICTURES.get(name, ("", lambda: transformers.CLIPImageProcessor(**CROPPED)))
    pictures().save_pretrained(folder)
    if kind:
        for path in folder.glob("*preprocessor_config.json"):
            path.write_text(json.dumps(json.loads(path.read_text()) | {"processor_class": kind}))
    return folder


@torch.inference_mode()
def own_text_vectors(name: str, folder: Path, texts: list[str]) -> torch.Tensor:
    """Return the library's own vectors of a batch of texts, of length 1."""
    model = transformers.AutoModel.from_pretrained(folder)
    # SigLIP's own class needs sentencepiece; the texts below are prepared as that class does.
    reader = PreTrainedTokenizerFast if name == "siglip" else transformers.AutoTokenizer
    tokenizer = reader.from_pretrained(folder)
    tokens = tokenizer([as_trained(name, text) for text in texts], return_tensors="pt", **FAMILIES[name][2])
    output = model.eval().get_text_features(**tokens)
    vectors = output if isinstance(output, torch.Tensor) else output.pooler_output
    return torch.nn.functional.normalize(vectors, dim=-1)


@torch.inference_mode()
def own_pair_vectors(
    name: str, folder: Path, windows: list[list[np.ndarray]], texts: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the library's own vectors, of length 1, of windows of frames and of texts, all in one batch.

    They are those of the zero-shot pipeline, or, for types that it does not have, of the model's own processor.
    """
    prepared = [as_trained(name, text) for text in texts]
    model_type = transformers.AutoConfig.from_pretrained(folder).model_type
    if model_type in MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES and name != "videoprism":
        given = {"tokenizer": PreTrainedTokenizerFast.from_pretrained(folder)} if name == "siglip" else {}
        pipeline = transformers.pipeline("zero-shot-image-classification", model=str(folder), device="cpu", **given)
        seen = []
        pipeline.model.register_forward_hook(lambda model, inputs, output: seen.append(output))
        for window in windows:
            pipeline(Image.fromarray(window[0]), candidate_labels=prepared, hypothesis_template="{}")
        pictures, read = torch.cat([output.image_embeds for output in seen]), seen[0].text_embeds
    else:
        processor = transformers.AutoProcessor.from_pretrained(folder)
        model = transformers.AutoModel.from_pretrained(folder).eval()
        options = {} if "padding" in getattr(processor, "text_kwargs", {}) else {"padding": True}
        tokens = processor(text=prepared, return_tensors="pt", truncation=True, **options)
        if name == "videoprism":
            pixels = processor(videos=[np.stack(window) for window in windows], return_tensors="pt")
            output = model(**tokens, **pixels)
            pictures, read = output.video_embeds, output.text_embeds
        elif name == "xclip":  # its texts get a prompt of each video, which an index cannot have
            pixels = processor(images=[list(window) for window in windows], return_tensors="pt")["pixel_values"]
            pictures = model.get_video_features(pixel_values=pixels).pooler_output
            read = model.get_text_features(**tokens).pooler_output
        else:
            frames = [Image.fromarray(window[0]) for window in windows]
            pixels = processor(images=frames, return_tensors="pt")["pixel_values"]
            output = model(**tokens, pixel_values=pixels)
            pictures, read = output.image_embeds, output.text_embeds
    return tuple(torch.nn.functional.normalize(vectors, dim=-1).numpy() for vectors in (pictures, read))


def as_trained(name: str, text: str) -> str:
    """Return a text as the authors of a SigLIP prepare it.

    Sources: big_vision, ``evaluators/proj/image_text/prompt_engineering.py`` (SigLIP); its README of SigLIP 2.
    """
    if not name.startswith("siglip"):
        return text
    if name.startswith("siglip2"):
        return text.lower()
    return re.sub(r"\s+", " ", text.lower().translate(str.maketrans("", "", string.punctuation))).strip()
