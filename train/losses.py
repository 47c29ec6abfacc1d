"""Objectives as pure functions. Shape letters: B pairs in the batch, M video tokens, N text tokens, D width, P pairs that are scored.

The papers' equations sum over the batch; these take the mean, so that a learning rate does not depend on the batch size.
Where several processes share a batch, each has the texts ``first`` to ``first + R`` of it and all B videos.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def sentence_nce(video_BD: Tensor, text_RD: Tensor, temperature: float = 1.0, first: int = 0) -> Tensor:
    """TACo Eq. 3: each text must pick its own video among all of the batch, by dot product. A scalar, the mean over texts."""
    return nce(text_RD @ video_BD.T / temperature, first)


def nce(logits_RB: Tensor, first: int = 0) -> Tensor:
    """Cross entropy, the right answer of row i being column first + i. A scalar, the mean over rows."""
    return F.cross_entropy(logits_RB, torch.arange(first, first + len(logits_RB), device=logits_RB.device))


def token_similarity(video_BMD: Tensor, video_mask_BM: Tensor, tokens: Tensor) -> Tensor:
    """s(x_j, y_i^p) of TACo Eq. 4: tokens [..., D] -> [..., B], the largest dot product of each with any token of video j.

    ``video_mask_BM``: True where there is a token; every video has at least one.
    """
    products = torch.einsum("...d,bmd->...bm", tokens, video_BMD)
    return products.masked_fill(~video_mask_BM, float("-inf")).amax(dim=-1)


def token_nce(
    video_BMD: Tensor, video_mask_BM: Tensor, text_RND: Tensor, token_weights_RN: Tensor, temperature: float = 1.0, first: int = 0
) -> Tensor:
    """TACo Eq. 4: each token of interest must pick its text's video, by its best match within a video.

    ``token_weights_RN``: the tokens' normalised idf (Appendix A), 0 for tokens of no interest. A scalar, the mean over texts;
    0 where no text has a token of interest.
    """
    text_of_S, place_S = token_weights_RN.nonzero(as_tuple=True)
    similarity_SB = token_similarity(video_BMD, video_mask_BM, text_RND[text_of_S, place_S])
    return weighted_nce(similarity_SB / temperature, first + text_of_S, token_weights_RN[text_of_S, place_S]) / len(text_RND)


def weighted_nce(logits_SB: Tensor, right_S: Tensor, weights_S: Tensor) -> Tensor:
    """The sum over rows of weight times cross entropy; 0 where there is no row."""
    return weights_S @ F.cross_entropy(logits_SB, right_S, reduction="none")


def cascade_scores(sentence_TV: Tensor, token_SV: Tensor, text_of_S: Tensor) -> Tensor:
    """What cascade sampling takes for hard, [T, V]: TACo section 3.3, "we sum the two similarities".

    ``sentence_TV``: dot products of Eq. 3. ``token_SV``: those of Eq. 4 (``token_similarity``) of the texts' tokens of interest,
    which all count the same here: the paper weights them by idf in the loss only. ``text_of_S``: the row of each one's text.
    """
    return sentence_TV.index_add(0, text_of_S, token_SV)


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
    by_text = nce(scores_BB.masked_fill(~of_texts, float("-inf")))
    by_video = nce(scores_BB.masked_fill(~of_videos, float("-inf")).T)
    return (by_text + by_video) / 2


def fusion_token_nce(scores_BBN: Tensor, of_texts: Tensor, token_weights_BN: Tensor) -> Tensor:
    """ToCo Eq. 2 over the pairs that were sampled: each token of interest, as the fusion layers put it beside a video, must pick its
    text's video.

    ``scores_BBN``: f^t of text i's token n beside video j, anything where ``of_texts`` [B, B] is False. ``token_weights_BN``:
    normalised idf, 0 for tokens of no interest. A scalar, the mean over texts.
    """
    text_of_S, place_S = token_weights_BN.nonzero(as_tuple=True)
    logits_SB = scores_BBN[text_of_S, :, place_S].masked_fill(~of_texts[text_of_S], float("-inf"))
    return weighted_nce(logits_SB, text_of_S, token_weights_BN[text_of_S, place_S]) / len(scores_BBN)
