"""Labels of seconds and rows, and windows."""

import numpy as np
from vlalign.storage import Caption
from vlalign.train.data.segments import LabelledVideo, label_frames, labels_of_rows, segments_of, windows


def test_seconds_rows_and_windows_are_labelled_by_their_times():
    segments = [
        Caption(video_id="v", caption="a", split="test", start_seconds=start, end_seconds=end, step=step)
        for start, end, step in ((1.5, 4.2, 7), (4.0, 6.0, 8), (9.0, 30.0, 7))
    ]
    segments = segments_of(segments)
    video = LabelledVideo("v", 10, segments)
    assert label_frames(video, {7: 1, 8: 2}).tolist() == [
        0,
        1,
        1,
        1,
        2,
        2,
        0,
        0,
        0,
        1,
    ]  # the later segment counts, and the video ends
    assert label_frames(video, {8: 2}).tolist() == [0, -1, -1, -1, 2, 2, 0, 0, 0, -1]
    times = np.array([[0.0, 1.0], [1.2, 1.8], [1.4, 1.8], [3.9, 4.2], [5.5, 6.5]])
    assert labels_of_rows(times, segments, {7: 1, 8: 2}).tolist() == [0, 1, 1, 2, 0]
    for num_frames in range(1, 100):
        clips = windows("v", num_frames)
        covered = {second for clip in clips for second in range(int(clip.start_seconds), int(clip.end_seconds))}
        assert covered == set(range(num_frames)) and all(clip.end_seconds - clip.start_seconds <= 32 for clip in clips)
        assert len(clips) == 1 + max(0, -(-(num_frames - 32) // 8))
