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


def cascade_scores(sentence_TV: Tensor, token_TNV: Tensor, of_interest_TN: Tensor) -> Tensor:
    """What cascade sampling takes for hard, [T, V]: TACo section 3.3, "we sum the two similarities".

    ``sentence_TV``: dot products of Eq. 3. ``token_TNV``: those of Eq. 4 (``token_similarity``), summed over the tokens of
    interest, which all count the same here: the paper weights them by idf in the loss only.
    """
    return sentence_TV + (token_TNV * of_interest_TN[:, :, None]).sum(dim=1)


def hard_negatives(scores_BB: Tensor, num_negatives: int) -> tuple[Tensor, Tensor]:
    """Each text's own video and the ``num_negatives`` others with the highest scores, and each video's texts likewise.

    Two masks [B, B], text by video: in the first, each row is a text's problem; in the second, each column is a video's. A pair that
    both want needs to be scored only once: the pairs to score are those where either mask is True. Fewer others than
    ``num_negatives``: all of them.
    """
    size = len(scores_BB)
    own = torch.eye(size, dtype=torch.bool, device=scores_BB.device)
    others = scores_BB.detach().masked_fill(own, float("-inf"))
    count = min(num_negatives, size - 1)
    of_texts = own.scatter(1, others.topk(count, dim=1).indices, True)
    of_videos = own.scatter(0, others.topk(count, dim=0).indices, True)
    return of_texts, of_videos


def fusion_nce(scores_BB: Tensor, of_texts: Tensor, of_videos: Tensor) -> Tensor:
    """TACo Eq. 5 over the pairs that were sampled: each text must pick its video, and each video its text ("and vice versa").

    ``scores_BB``: w . z_cls of text i and video j, anything where neither mask of ``hard_negatives`` is True. A scalar, the mean
    over the 2 B problems.
    """
    own = torch.arange(len(scores_BB), device=scores_BB.device)
    by_text = F.cross_entropy(scores_BB.masked_fill(~of_texts, float("-inf")), own)
    by_video = F.cross_entropy(scores_BB.masked_fill(~of_videos, float("-inf")).T, own)
    return (by_text + by_video) / 2
