"""Encoders that other libraries load by name: profiles, preprocessing, networks and text towers."""

from ...storage.records import Profile

METHODS = "get_video_features", "get_image_features", "get_vision_features", "forward"
"""Methods of transformers' models that turn images into features, the most specific first."""
OWN_VECTOR = "the model's own vector"
SHARED_WITH_TEXTS = f"get_video_features, {OWN_VECTOR}", f"get_image_features, {OWN_VECTOR}"
"""Values of a profile's ``layer`` for models that may also give comparable text vectors."""


def is_of_hub(profile: Profile) -> bool:
    """Return whether features were made by an encoder that transformers loads."""
    return profile.layer.startswith(tuple(f"{method}, " for method in METHODS))


def is_shared_with_texts(profile: Profile) -> bool:
    """Return whether the model of these features may also encode texts as comparable vectors."""
    return profile.layer in SHARED_WITH_TEXTS
