"""A CLIP that reads English words, made with transformers' own classes and written by ``save_pretrained``."""

from collections.abc import Iterable
from pathlib import Path

import torch
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

START, END = "<|startoftext|>", "<|endoftext|>"


def word_tokenizer(texts: Iterable[str]) -> CLIPTokenizer:
    """Return CLIP's tokenizer with the letters and the whole words of some texts."""
    words = sorted({word for text in texts for word in text.lower().split()})
    letters = sorted({letter for word in words for letter in word} | set("abcdefghijklmnopqrstuvwxyz0123456789.,'?!-"))
    vocabulary = [*letters, *(f"{letter}</w>" for letter in letters)]
    merges: list[tuple[str, str]] = []
    for word in words:
        pieces = [*word[:-1], f"{word[-1]}</w>"]
        while len(pieces) > 1:
            merges.append((pieces[0], pieces[1]))
            pieces[:2] = [pieces[0] + pieces[1]]
            vocabulary.append(pieces[0])
    vocabulary = list(dict.fromkeys([*vocabulary, START, END]))
    return CLIPTokenizer(vocab={token: n for n, token in enumerate(vocabulary)}, merges=list(dict.fromkeys(merges)))


def new_clip(tokenizer: CLIPTokenizer, *, width: int = 64, num_layers: int = 2, seed: int = 0) -> CLIPModel:
    """Return a small CLIP with random weights whose features fit the profile ``clip_vit_b32``."""
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": num_layers}
    sizes |= {"num_attention_heads": 4, "projection_dim": 512}
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    text = sizes | {"vocab_size": len(tokenizer), "max_position_embeddings": 77, "pad_token_id": ends["eos_token_id"]}
    vision = sizes | {"image_size": 224, "patch_size": 32}
    torch.manual_seed(seed)
    return CLIPModel(CLIPConfig(text_config=text | ends, vision_config=vision, projection_dim=512)).eval()


def save_clip(model: CLIPModel, tokenizer: CLIPTokenizer, folder: Path) -> Path:
    """Write the model as its publisher would; return the folder."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_clip_with_processor(folder: Path) -> Path:
    """Write a small CLIP with random weights and its processor, as a hub has it; return the folder."""
    tokenizer = word_tokenizer(["a red ball falls", "a blue box"])
    save_clip(new_clip(tokenizer), tokenizer, folder)
    CLIPProcessor(image_processor=CLIPImageProcessor(), tokenizer=tokenizer).save_pretrained(folder)
    return folder


def save_wide_clip(texts: Iterable[str], folder: Path, width: int) -> Path:
    """Write a CLIP of one layer with random weights, whose texts have vectors of a width; return the folder."""
    tokenizer = word_tokenizer(texts)
    sizes = {"hidden_size": width, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 1}
    text = sizes | ends | {"vocab_size": len(tokenizer), "max_position_embeddings": 77}
    vision = sizes | {"hidden_size": 8, "image_size": 8, "patch_size": 4}
    torch.manual_seed(0)
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=width)
    return save_clip(CLIPModel(config).eval(), tokenizer, folder)
