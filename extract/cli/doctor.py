"""The command vlalign-doctor."""

import argparse
import json
from dataclasses import asdict

from ...storage.cli.command import run_command
from ...storage.cli.parser import Parser, command_parser
from ...storage.common.errors import EXIT_DONE, EXIT_INCOMPLETE
from ...storage.common.terminal import show
from .examination import examine


def _doctor(args: argparse.Namespace) -> int:
    findings = []
    for finding in examine(args.root):
        findings.append(finding)
        if not args.json:
            mark = "MISSING" if finding.needed else "note" if finding.todo else "ok"
            show(f"{mark:<8} {finding.what:<15} {finding.found}")
            if finding.todo:
                show(f"{'':<8} {'':<15} -> {finding.todo}")
    if args.json:
        show(json.dumps([asdict(finding) for finding in findings], indent=2))
    return EXIT_INCOMPLETE if any(finding.needed for finding in findings) else EXIT_DONE


def make_parser() -> Parser:
    """Return the parser of vlalign-doctor."""
    parser = command_parser(
        "vlalign-doctor",
        "Look at decoders, GPU, spaCy model, weights, disk and cores of this machine. Say what is missing, and the "
        "command that mends it. The exit code is 1 if something is missing that some command needs.",
        "vlalign-doctor\n  vlalign-doctor --json",
    )
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_command(_doctor, make_parser(), argv)
