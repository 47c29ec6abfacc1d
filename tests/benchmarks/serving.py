"""The search page under load, and under attack: a real vlalign-serve on loopback.

    python tests/benchmarks/serving.py RUN [--root vlalign_data] [--dataset demo] [--clients 50] [--seconds 60]
                                       [--hostile 10000]

Clients ask as a browser does: a search, then curves, thumbnails and a part of a video. Hostile requests are bytes on a
socket, because clients would repair them: paths, ids, ranges, hosts, methods, sizes. Exit code 1 if a client got an
error, if a hostile request got something, or if the server did not answer afterwards.
"""

import argparse
import asyncio
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from urllib.parse import parse_qs

import aiohttp
import numpy as np

SECRETS = (b"root:x:0:0", b"BEGIN OPENSSH", b"[project]", b"import argparse")
"""In files that a server that can be led astray would send."""
WORDS = ["red", "blue", "green", "large", "small", "circle", "square", "star", "cross", "falls", "rises"]
READ_SECONDS, MOST_READ = 3.0, 1 << 20
AT_ONCE = 150
"""Hostile requests at a time. Those without an end are given up after ``READ_SECONDS``."""


class Times:
    """Seconds of the answers by address, and what went wrong."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.errors: Counter[str] = Counter()

    async def get(self, session: aiohttp.ClientSession, address: str, **options) -> object:
        start = time.perf_counter()
        try:
            async with session.get(address, **options) as answer:
                content = await (answer.json() if "json" in answer.content_type else answer.read())
                if answer.status not in (200, 206):
                    self.errors[f"{address} {answer.status} {str(content)[:80]}"] += 1
                    return None
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            self.errors[f"{address} {type(error).__name__}"] += 1
            return None
        self.seconds[address].append(time.perf_counter() - start)
        return content


async def visit(times: Times, address: str, headers: dict[str, str], rng: random.Random, until: float) -> None:
    """Do as somebody who looks for one thing after the other."""
    async with aiohttp.ClientSession(address, headers=headers, timeout=aiohttp.ClientTimeout(60)) as session:
        while time.monotonic() < until:
            query = " ".join(rng.sample(WORDS, 4))
            found = await times.get(session, "/api/search", params={"q": query, "num_results": 4})
            for moment in found["moments"] if found else []:
                of = {"video_id": moment["video_id"]}
                await times.get(session, "/api/score_curve", params=of | {"q": query})
                await times.get(session, "/media/picture", params=of | {"seconds": moment["start_seconds"]})
                await times.get(session, "/media/video", params=of, headers={"Range": "bytes=0-65535"})


async def load(address: str, headers: dict[str, str], num_clients: int, seconds: float) -> bool:
    times, until = Times(), time.monotonic() + seconds
    await asyncio.gather(*(visit(times, address, headers, random.Random(n), until) for n in range(num_clients)))
    for name, of in sorted(times.seconds.items()):
        p50, p95, most = np.percentile(of, [50, 95, 100]) * 1e3
        print(f"{name:16} {len(of):6,} answers  p50 {p50:7.1f} ms  p95 {p95:7.1f} ms  longest {most:7.1f} ms")
    print(f"errors: {sum(times.errors.values())}")
    for what, count in times.errors.most_common(5):
        print(f"  {count} x {what}")
    return not times.errors


def hostile_request(rng: random.Random, video_id: str, known: dict[str, str]) -> bytes:
    """Return the bytes of a request that nobody should get anything for; a few just ask for a video by its id."""
    pieces = ["..", "%2e%2e", ".%2e", "/", "//", "\\", "%5c", "%2f", "%00", "static", "media", "api", "video"]
    pieces += ["etc/passwd", "pyproject.toml", "videos", "~", "%25", "%c0%ae", "file:", "C:", "index", "*"]
    below = rng.choice(["", "static/", "media/", "api/", "media/video/"])
    path = f"/{below}{'/'.join(rng.choices(pieces, k=rng.randint(1, 9)))}"
    if rng.random() < 0.4:
        names = [*pieces, *[video_id] * 20, "'", '"', "<script>", "&", "#"]
        name = "".join(rng.choices(names, k=rng.choice([1, 1, 2, 5])))
        seconds = rng.choice(["0", "-1", "nan", "1e999", "x"])
        kind, end = rng.choice(["video", "picture", "clip"]), rng.choice(["1", "1", "9e6", "nan", "0"])
        of_kind = {"video": "", "picture": f"&seconds={seconds}", "clip": f"&start={seconds}&end={end}"}
        path = f"/media/{kind}?video_id={name}{of_kind[kind]}"
    if rng.random() < 0.1:
        query, count = rng.choice(["", "%00", "x" * 3000]), rng.choice(["0", "-5", "99999999999", "x"])
        path = f"/api/search?q={query}&num_results={count}"
    low, high = (rng.choice(["", "-1", "0", "5", "99999999999999999999", "x"]) for _ in range(2))
    # Most requests are odd in one place only, so that they get past what refuses the others.
    hosts = [*["127.0.0.1"] * 20, "evil.example", "127.0.0.1.evil.example", "", "localhost@evil", "[::1", "a" * 300]
    headers = [
        f"Host: {rng.choice(hosts)}",
        f"Range: {rng.choice(['bytes', 'lines', ''])}={low}-{high}{rng.choice(['', ',0-1' * 50])}",
    ]
    if rng.random() < 0.9:  # most know the token
        headers += [f"{name}: {value}" for name, value in known.items()]
    lengths = ["Content-Length: 99999999999"], ["Content-Length: -1"], ["Transfer-Encoding: chunked"]
    headers += rng.choice(
        [[], *lengths, ["X: " + "y" * 70_000], ["Host: evil.example"], [f"H{n}: x" for n in range(500)]]
    )
    method = rng.choice(["GET"] * 40 + ["POST", "PUT", "DELETE", "TRACE", "CONNECT", "G\x00T", "get", "x" * 5000])
    if rng.random() < 0.03:
        path += rng.choice(["\x00", "\u2025", "\r\nX: y"])
    if rng.random() < 0.03:
        path += "x" * rng.choice([9_000, 200_000])
    version = rng.choice(["HTTP/1.1"] * 40 + ["HTTP/9.9", "HTTP/1.0", ""])
    end = rng.choice(["\r\n"] * 60 + ["\n", "\r"])
    return end.join([f"{method} {path} {version}", *headers, "Connection: close", "", ""]).encode("utf-8", "replace")


async def attack(port: int, request: bytes) -> bytes:
    """Send bytes; return what comes back until the server ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        writer.write(request)  # without an end of file, at which the server would drop an answer that takes time
        while len(answer) < MOST_READ and (part := await asyncio.wait_for(reader.read(1 << 16), READ_SECONDS)):
            answer += part
    except (OSError, asyncio.TimeoutError) as error:  # the server ended the connection while there was more to send
        return answer or type(error).__name__.encode()
    finally:
        writer.close()
    return answer


async def under_attack(port: int, address: str, headers: dict[str, str], num_requests: int) -> bool:
    rng, statuses, wrong = random.Random(0), Counter(), []
    async with aiohttp.ClientSession(address, headers=headers) as session:
        page = await (await session.get("/")).read()
        found = await (await session.get("/api/search", params={"q": "a", "num_results": 1})).json()
        video_id = found["moments"][0]["video_id"]
    start = time.monotonic()
    for first in range(0, num_requests, AT_ONCE):
        requests = [hostile_request(rng, video_id, headers) for _ in range(min(AT_ONCE, num_requests - first))]
        for request, answer in zip(requests, await asyncio.gather(*(attack(port, r) for r in requests)), strict=True):
            head, _, body = answer.partition(b"\r\n\r\n")
            status = head.split(b" ")[1].decode() if head.startswith(b"HTTP/") else head[:20].decode(errors="replace")
            statuses[status or "nothing"] += 1
            served = status.startswith("2") and body not in (b"", page)
            is_error = status.startswith("5") and not (b"too many clips" in answer or b"too many pictures" in answer)
            is_wrong = any(secret in answer for secret in SECRETS) or is_error
            if is_wrong or (served and not is_meant(request, video_id)):
                wrong.append((request[:200], answer[:200]))
    print(f"{num_requests:,} hostile requests in {time.monotonic() - start:.0f} s: {dict(statuses.most_common())}")
    for request, answer in wrong[:5]:
        print(f"  wrong: {request!r} -> {answer!r}")
    async with aiohttp.ClientSession(address, headers=headers) as session, session.get("/api/about") as answer:
        print(f"wrong: {len(wrong)}; afterwards the page answers {answer.status}")
        return not wrong and answer.status == 200


def is_meant(request: bytes, video_id: str) -> bool:
    """Return whether a request asks for what everybody may have: the page, its files, the description, or the video."""
    path, _, asked = request.split(b" ")[1].partition(b"?")
    ids = parse_qs(asked.decode(errors="replace")).get("video_id", [])
    return path.rstrip(b"/") in (b"", b"/static/page.js", b"/api/openapi.json") or ids == [video_id]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--root", type=Path, default=Path("vlalign_data"))
    parser.add_argument("--dataset", default="demo")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--hostile", type=int, default=10_000)
    args = parser.parse_args()
    program = "import sys; from vlalign.train.cli.serve import main; sys.exit(main(sys.argv[1:]))"
    at = ["--root", str(args.root), "--dataset", args.dataset, "--port", "0"]
    command, environment = [sys.executable, "-c", program, args.run, *at], os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as server:
        assert server.stdout is not None
        address = next(line.split()[0] for line in server.stdout if line.startswith("http"))
        site, token = address.split("/?token=")
        port, headers = int(site.rsplit(":", 1)[1]), {"Authorization": f"Bearer {token}"}
        try:
            is_well = asyncio.run(load(site, headers, args.clients, args.seconds))
            is_safe = asyncio.run(under_attack(port, site, headers, args.hostile))
            status = Path(f"/proc/{server.pid}/status").read_text().split("VmHWM:")[1].split()[0]
            print(f"server: {int(status) / 1024:.0f} MiB at most")
        finally:
            server.terminate()
    return 0 if is_well and is_safe else 1


if __name__ == "__main__":
    sys.exit(main())
