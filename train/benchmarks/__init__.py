"""Public benchmarks: search measured by their protocols, and models and tasks of mteb."""

BENCHMARKS = {
    "moments": "the moments of a video that a text describes (Charades-STA, QVHighlights, or any captions with times)",
    "copies": "copies of videos (VSC2022)",
    "composed": "the parts of a long video for a text with an image or a clip (MomentSeeker)",
}
"""{name: description of the benchmark}"""
