"""Words with times -> segments of a few seconds, like captions."""

from collections.abc import Iterator, Sequence

from ...storage.captions.transcripts import TimedWord, TranscriptSegment

MAX_SECONDS = 6.0
"""A segment that would last longer is ended. HowTo100M's captions last 4 s on average (Miech et al. 2019, Table 1)."""
MIN_SENTENCE_SECONDS = 1.0
"""Minimum duration of a sentence; a shorter one, such as "OK.", is joined to the next one."""
PAUSE_SECONDS = 1.0
"""A pause that ends a segment."""
SENTENCE_ENDS = (".", "?", "!", "…", "。", "\uff1f", "\uff01", "।", "؟")
"""Ends of sentences in the scripts that Whisper writes; two are full-width."""


def segments_of(words: Sequence[tuple[str, float, float, float]]) -> list[TranscriptSegment]:
    """Return segments that end with a sentence, before a pause, or after ``MAX_SECONDS``.

    Args:
        words: (word with punctuation and the blank before it, start, end, probability), in order.
    """
    return [_segment(group) for group in _groups(words)]


def _groups(words: Sequence[tuple[str, float, float, float]]) -> Iterator[list[tuple[str, float, float, float]]]:
    group: list[tuple[str, float, float, float]] = []
    for word in words:
        if group:
            first, last = group[0], group[-1]
            is_sentence = last[0].endswith(SENTENCE_ENDS) and last[2] - first[1] >= MIN_SENTENCE_SECONDS
            if is_sentence or word[1] - last[2] >= PAUSE_SECONDS or word[2] - first[1] > MAX_SECONDS:
                yield group
                group = []
        group.append(word)
    if group:
        yield group


def _segment(group: Sequence[tuple[str, float, float, float]]) -> TranscriptSegment:
    """Return a segment of positive length, even if all of its words have the same time."""
    start = group[0][1]
    end = max(group[-1][2], start + 0.1)
    return TranscriptSegment(
        start_seconds=round(start, 2),
        end_seconds=round(end, 2),
        text=" ".join("".join(word for word, *_ in group).split()),
        confidence=round(sum(probability for *_, probability in group) / len(group), 4),
        words=[
            TimedWord(word.strip(), round(begin, 2), round(max(end, begin), 2), round(probability, 4))
            for word, begin, end, probability in group
        ],
    )
