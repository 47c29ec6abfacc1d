#!/usr/bin/env python3
"""Check the pinned versions for known vulnerabilities, offline, with a list beside this file.

    python .ci/audit.py             check; exit code 1 if a pin has a known vulnerability or is not in the list
    python .ci/audit.py --refresh   ask the package index about each pin, write a new list, and check

For each pin, the list ``advisories.json`` has the index's advisories, or null if the index gave no answer (it has no
page for that version, and another version is the latest). ``accepted`` is edited by hand: it maps the id of an
advisory to the reason why it does not affect vlalign. (pip-audit asks the same index, but cannot check without a
network.)
"""

import argparse
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

HERE = Path(__file__).resolve().parent
MAX_DAYS = 90
SECONDS = 60.0
Advisory = dict[str, object]


def pins_of(constraints: Path) -> list[str]:
    """Return ``name==version`` of each pin. A name can have several pins, for several Python versions."""
    return re.findall(r"^[\w.-]+==[^\s;\\]+", constraints.read_text(), flags=re.MULTILINE)


def index_of_uv() -> str:
    """Return the address of the index that packages are installed from, without ``/simple``."""
    call = [sys.executable, "-m", "uv", "pip", "compile", "-", "--emit-index-url", "--no-header", "--quiet"]
    output = subprocess.run(call, input="", text=True, capture_output=True, check=True).stdout
    match = re.search(r"--index-url (\S+)", output)
    if match is None:
        raise OSError("uv names no index")
    return match[1].removesuffix("/").removesuffix("/simple")


def ask(index: str, pin: str) -> list[Advisory] | None:
    """Return the index's advisories about a pin; None if it gave no answer.

    Raises:
        OSError: The index cannot be reached.
    """
    name, version = pin.split("==")
    for page in (
        f"{name}/{version}",
        name,
    ):  # some mirrors only have the second page, which is about the latest version
        try:
            with urllib.request.urlopen(f"{index}/pypi/{page}/json", timeout=SECONDS) as answer:
                content = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                continue
            raise
        if content["info"]["version"] == version and "vulnerabilities" in content:
            return [
                {
                    "id": advisory["id"],
                    "aliases": advisory["aliases"],
                    "fixed_in": advisory["fixed_in"],
                    "summary": advisory["summary"] or advisory["details"][:200],
                }
                for advisory in content["vulnerabilities"]
                if not advisory.get("withdrawn")
            ]
    return None


def refresh(constraints: Path, file: Path) -> None:
    """Ask the index about each pin and write a new list, keeping what was accepted."""
    index, pins = index_of_uv(), pins_of(constraints)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda pin: ask(index, pin), pins))
    accepted = json.loads(file.read_text())["accepted"] if file.exists() else {}
    content = {"made": date.today().isoformat(), "accepted": accepted, "pins": dict(zip(pins, answers, strict=True))}
    file.write_text(json.dumps(content, indent=1) + "\n")


def check(constraints: Path, file: Path) -> int:
    """Print the known vulnerabilities of the pins. Return the exit code."""
    content, pins = json.loads(file.read_text()), pins_of(constraints)
    known, accepted = content["pins"], content["accepted"]
    missing = [pin for pin in pins if pin not in known]
    unanswered = [pin for pin in pins if pin in known and known[pin] is None]
    bad = [(pin, found) for pin in pins for found in known.get(pin) or [] if found["id"] not in accepted]
    days = (date.today() - date.fromisoformat(content["made"])).days
    for pin, advisory in bad:
        fixed = ", ".join(advisory["fixed_in"]) or "no version yet"
        names = ", ".join([advisory["id"], *advisory["aliases"]])
        print(
            f"audit: {pin}: {names}: {advisory['summary']}; fixed in {fixed}: update the pin, or explain in {file} "
            "under 'accepted' why it can stay"
        )
    if missing:
        print(
            f"audit: {len(missing)} pins are not in {file}, such as {', '.join(missing[:3])}: run make audit on a "
            "machine that can reach the package index"
        )
    summary = f"audit: {len(pins)} pins, list of {content['made']}: {len(bad)} known vulnerabilities"
    if accepted:
        summary += f", {len(accepted)} accepted"
    if unanswered:
        summary += f"; no answer from the index for {len(unanswered)}"
    if days > MAX_DAYS:
        summary += f"; the list is {days} days old: run make audit"
    print(summary)
    return 1 if bad or missing else 0


def main() -> int:
    """Run the check and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--refresh", action="store_true", help="ask the package index first")
    parser.add_argument("--constraints", type=Path, default=HERE.parent / "constraints.txt")
    parser.add_argument("--list", type=Path, default=HERE / "advisories.json")
    args = parser.parse_args()
    if args.refresh:
        try:
            refresh(args.constraints, args.list)
        except OSError as error:
            print(f"audit: error: the package index cannot be reached ({error}); {args.list} is unchanged")
            return 2
    return check(args.constraints, args.list)


if __name__ == "__main__":
    sys.exit(main())
