"""Sizes of videos on S3, from listings of their buckets: one request for a thousand videos."""

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ...storage.common.terminal import number_of, say
from ...storage.common.threads import map_in_threads
from ...storage.remote.addresses import hide_secrets, scheme_of
from ...storage.remote.file_systems import file_system
from .pending_work import VideoTask

PAGE_KEYS = 1000
"""Number of objects on a page of an S3 listing."""
MAX_PAGES = 8
"""Maximum number of pages for videos that would fit on one page: other objects may be between them."""
MAX_SECONDS = 60.0
"""Longest time for all sizes together. Extraction needs none of them, so a server that does not answer is not waited
for."""


def with_sizes(tasks: Sequence[VideoTask]) -> list[VideoTask]:
    """Set the sizes of videos that are objects on S3. Other addresses keep 0, for unknown.

    If a server cannot be reached or listed, or takes longer than ``MAX_SECONDS``, sizes stay 0 and a note reports it.
    """
    urls = [task.video.url for task in tasks if scheme_of(task.video.url) == "s3" and "?" not in task.video.url]
    sizes = sizes_on_s3(urls) if urls else {}
    return [task._replace(size=sizes.get(task.video.url, task.size)) for task in tasks]


def sizes_on_s3(urls: Sequence[str]) -> dict[str, int]:
    """Return {address: bytes} of the objects that are there; a note names buckets that cannot be listed."""
    keys: dict[str, set[str]] = defaultdict(set)
    for url in urls:
        bucket, _, key = url.partition("://")[2].partition("/")
        keys[bucket].add(key)
    sizes: dict[str, int] = {}
    reasons: dict[str, str] = {}
    until = time.monotonic() + MAX_SECONDS
    for bucket, of_bucket in keys.items():
        try:
            listing, ordered = _Listing(bucket, until), sorted(of_bucket, key=str.encode)
            parts = [ordered[first : first + PAGE_KEYS] for first in range(0, len(ordered), PAGE_KEYS)]
            sizes |= listing.sizes(parts[0])  # alone: a server that does not answer is asked once
            for found in map_in_threads(listing.sizes, parts[1:], calls_per_part=1):
                sizes |= found
        except Exception as error:  # s3fs, botocore and aiohttp raise errors of their own, which have no common base
            reasons[bucket] = " ".join(hide_secrets(str(error)).split())[:200] or type(error).__name__
    if reasons:
        unknown = number_of(sum(len(keys[bucket]) for bucket in reasons), "videos")
        bucket, reason = next(iter(reasons.items()))
        say(f"note: the sizes of {unknown} on S3 are not known: s3://{bucket} cannot be listed ({reason})")
    return sizes


class _Listing:
    """Lists a bucket, until a deadline."""

    def __init__(self, bucket: str, until: float) -> None:
        self._files, _ = file_system(f"s3://{bucket}")
        self._bucket, self._until = bucket, until

    def sizes(self, keys: Sequence[str]) -> dict[str, int]:
        """Return {address: bytes} of keys in S3's order. Each page starts at the next key, past unrelated objects."""
        wanted, sizes, last = set(keys), {}, ""
        left = list(reversed(keys))
        for _ in range(MAX_PAGES):
            # Keys are in the order of their bytes. A key without its last character precedes all keys that begin with
            # it.
            page = self._page(max(last, left[-1][:-1], key=str.encode))
            objects = page.get("Contents", [])
            sizes |= {f"s3://{self._bucket}/{each['Key']}": each["Size"] for each in objects if each["Key"] in wanted}
            if not page.get("IsTruncated") or not objects:
                break
            last = objects[-1]["Key"]
            while left and left[-1].encode() <= last.encode():
                left.pop()
            if not left:
                break
        return sizes

    def _page(self, after: str) -> dict[str, Any]:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"it takes longer than {MAX_SECONDS:.0f} s")
        start = {"StartAfter": after} if after else {}
        return self._files.call_s3("list_objects_v2", Bucket=self._bucket, MaxKeys=PAGE_KEYS, **start, timeout=left)
