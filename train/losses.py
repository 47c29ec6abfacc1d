"""Objectives as pure functions. Shape letters: B pairs in the batch, M video tokens, N text tokens, D width.

The papers' equations sum over the batch; these take the mean, so that a learning rate does not depend on the batch size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def sentence_nce(video_BD: Tensor, text_BD: Tensor, temperature: float = 1.0) -> Tensor:
    """TACo Eq. 3: each text must pick its own video among all of the batch, by dot product. A scalar, the mean over texts."""
    similarity_text_video = text_BD @ video_BD.T / temperature
    return F.cross_entropy(similarity_text_video, torch.arange(len(text_BD), device=text_BD.device))


def token_similarity(video_BMD: Tensor, video_mask_BM: Tensor, text_CND: Tensor) -> Tensor:
    """s(x_j, y_i^p) of TACo Eq. 4, [C, N, B]: the largest dot product of text token p with any token of video j.

    ``video_mask_BM``: True where there is a token; every video has at least one.
    """
    products = torch.einsum("cnd,bmd->cnbm", text_CND, video_BMD)
    return products.masked_fill(~video_mask_BM, float("-inf")).amax(dim=-1)


def token_nce(video_BMD: Tensor, video_mask_BM: Tensor, text_BND: Tensor, token_weights_BN: Tensor, temperature: float = 1.0) -> Tensor:
    """TACo Eq. 4: each token of interest must pick its text's video, by its best match within a video.

    ``token_weights_BN``: the tokens' normalised idf (Appendix A), 0 for tokens of no interest. A scalar, the mean over texts;
    0 where no text has a token of interest.
    """
    similarity_BNB = token_similarity(video_BMD, video_mask_BM, text_BND) / temperature
    own_B1 = torch.arange(len(text_BND), device=text_BND.device)[:, None]
    log_probability_BN = similarity_BNB.log_softmax(dim=-1).gather(-1, own_B1[:, :, None].expand(-1, text_BND.shape[1], 1)).squeeze(-1)
    return -(token_weights_BN * log_probability_BN).sum(dim=1).mean()
