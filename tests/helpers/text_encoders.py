"""Small random text encoders of every supported kind, with their tokenizers."""

from transformers import (
    AlbertConfig,
    AlbertTokenizer,
    BertConfig,
    BertTokenizer,
    DebertaV2Config,
    DebertaV2Tokenizer,
    DistilBertConfig,
    ElectraConfig,
    MPNetConfig,
    MPNetTokenizer,
    RobertaConfig,
    RobertaTokenizer,
    T5Config,
    T5Tokenizer,
    XLMRobertaConfig,
    XLMRobertaTokenizer,
)
from vlalign.storage import IdfEntry
from vlalign.train.data.text_inputs import TokenWeights

TEXTS = ["Cut the red  Onion, and fry it.", "ünder 3 pans ☃"]
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
}
WORDS = ["cut", "the", "red", "onion", "and", "fry", "it", ".", ",", *"abcdefghijklmnopqrstuvwxyz0123456789"]
BERT = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
MPNET = {word: number for number, word in enumerate(["<s>", "<pad>", "</s>", "[UNK]", "<unk>", "<mask>", *WORDS])}
BYTES = {word: number for number, word in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>", "Ġ", *WORDS])}
PIECES = [(word, -float(number)) for number, word in enumerate(["▁", *(f"▁{word}" for word in WORDS[:7]), *WORDS[7:]])]
XLM = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *PIECES, ("<mask>", 0.0)]
ALBERT = [("<pad>", 0.0), ("<unk>", 0.0), ("[CLS]", 0.0), ("[SEP]", 0.0), ("[MASK]", 0.0), *PIECES]
DEBERTA = [("[PAD]", 0.0), ("[CLS]", 0.0), ("[SEP]", 0.0), ("[UNK]", 0.0), *PIECES, ("[MASK]", 0.0)]
T5 = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *PIECES]
T5_SIZES = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
DISENTANGLED = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
}
KINDS = {
    "bert": lambda: (BertConfig(**SMALL), BertTokenizer(vocab=BERT)),
    "distilbert": lambda: (DistilBertConfig(dim=16, n_layers=1, n_heads=2, hidden_dim=32), BertTokenizer(vocab=BERT)),
    "electra": lambda: (ElectraConfig(embedding_size=8, **SMALL), BertTokenizer(vocab=BERT)),
    "mpnet": lambda: (MPNetConfig(**SMALL), MPNetTokenizer(vocab=MPNET)),
    "roberta": lambda: (RobertaConfig(**SMALL), RobertaTokenizer(vocab=BYTES, merges=[])),
    "xlm-roberta": lambda: (XLMRobertaConfig(**SMALL), XLMRobertaTokenizer(vocab=XLM)),
    "albert": lambda: (AlbertConfig(embedding_size=8, **SMALL), AlbertTokenizer(vocab=ALBERT)),
    "t5": lambda: (T5Config(vocab_size=len(T5), **T5_SIZES), T5Tokenizer(vocab=T5, extra_ids=0)),
    "t5, version 1.1": lambda: (
        T5Config(vocab_size=len(T5), feed_forward_proj="gated-gelu", relative_attention_max_distance=9, **T5_SIZES),
        T5Tokenizer(vocab=T5, extra_ids=0),
    ),
    "deberta-v2": lambda: (DebertaV2Config(**DISENTANGLED, **SMALL), DebertaV2Tokenizer(vocab=DEBERTA)),
}
WEIGHTS = TokenWeights([IdfEntry(word="onion", part_of_speech="NOUN", document_count=1, idf=1.0)], ("NOUN",))
