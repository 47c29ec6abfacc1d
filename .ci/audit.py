#!/usr/bin/env python3
"""Holds the pinned versions against a list of known vulnerabilities that is kept beside this file, so that it can be done offline.

    python .ci/audit.py             compare; exit code 1 where a pin has a known vulnerability or is not in the list
    python .ci/audit.py --refresh   ask the package index about each pin, and write the list anew

The list, ``advisories.json``, has for each pin what the index said of it: a list of advisories, or null where it does not say (its page
of that version is missing, and another version is the latest). ``accepted`` is written by hand: an advisory's id, and why it does not
concern vlalign. (pip-audit asks the same index, but keeps nothing that a machine without a network could be held against.)
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
    """``name==version`` of each pin. A name may have several, for several Pythons."""
    return re.findall(r"^[\w.-]+==[^\s;\\]+", constraints.read_text(), flags=re.MULTILINE)


def index_of_uv() -> str:
    """The index that packages are installed from, without its ``/simple``."""
    call = [sys.executable, "-m", "uv", "pip", "compile", "-", "--emit-index-url", "--no-header", "--quiet"]
    said = subprocess.run(call, input="", text=True, capture_output=True, check=True).stdout
    return re.search(r"--index-url (\S+)", said)[1].removesuffix("/").removesuffix("/simple")


def ask(index: str, pin: str) -> list[Advisory] | None:
    """What the index's JSON says of a pin's vulnerabilities. None: it does not say. Raises ``OSError`` where it cannot be reached."""
    name, version = pin.split("==")
    for page in (f"{name}/{version}", name):  # a mirror may have the second alone, which is about the latest version
        try:
            with urllib.request.urlopen(f"{index}/pypi/{page}/json", timeout=SECONDS) as answer:
                said = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                continue
            raise
        if said["info"]["version"] == version and "vulnerabilities" in said:
            return [
                {
                    "id": each["id"],
                    "aliases": each["aliases"],
                    "fixed_in": each["fixed_in"],
                    "summary": each["summary"] or each["details"][:200],
                }
                for each in said["vulnerabilities"]
                if not each.get("withdrawn")
            ]
    return None


def refresh(constraints: Path, file: Path) -> None:
    index, pins = index_of_uv(), pins_of(constraints)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda pin: ask(index, pin), pins))
    accepted = json.loads(file.read_text())["accepted"] if file.exists() else {}
    content = {"made": date.today().isoformat(), "accepted": accepted, "pins": dict(zip(pins, answers, strict=True))}
    file.write_text(json.dumps(content, indent=1) + "\n")


def check(constraints: Path, file: Path) -> int:
    content, pins = json.loads(file.read_text()), pins_of(constraints)
    known, accepted = content["pins"], content["accepted"]
    missing = [pin for pin in pins if pin not in known]
    unsaid = [pin for pin in pins if pin in known and known[pin] is None]
    bad = [(pin, each) for pin in pins for each in known.get(pin) or [] if each["id"] not in accepted]
    days = (date.today() - date.fromisoformat(content["made"])).days
    for pin, each in bad:
        fixed = ", ".join(each["fixed_in"]) or "no version yet"
        names = ", ".join([each["id"], *each["aliases"]])
        print(
            f"audit: {pin}: {names}: {each['summary']}; fixed in {fixed}: move the pin, or say in {file} under 'accepted' why it may stay"
        )
    if missing:
        print(
            f"audit: {len(missing)} pins are not in {file}, such as {', '.join(missing[:3])}: run make audit, where the package index is"
        )
    said = f"audit: {len(pins)} pins, list of {content['made']}: {len(bad)} known vulnerabilities"
    said += f", {len(accepted)} accepted" * bool(accepted) + f"; the index did not say for {len(unsaid)}" * bool(unsaid)
    print(said + f"; the list is {days} days old: run make audit" * (days > MAX_DAYS))
    return 1 if bad or missing else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--refresh", action="store_true", help="ask the package index first")
    parser.add_argument("--constraints", type=Path, default=HERE.parent / "constraints.txt")
    parser.add_argument("--list", type=Path, default=HERE / "advisories.json")
    args = parser.parse_args()
    if args.refresh:
        try:
            refresh(args.constraints, args.list)
        except OSError as error:
            print(f"audit: error: the package index cannot be asked ({error}); {args.list} stays as it was")
            return 2
    return check(args.constraints, args.list)


if __name__ == "__main__":
    sys.exit(main())
