"""A real browser for tests of pages."""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from helpers.needs import PROGRAM, package, skip_without

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = skip_without(PROGRAM, [] if CHROMIUM else ["chromium"])


@contextmanager
def open_browser() -> Iterator[Any]:
    """Start Chromium without a window; skip the test without Playwright."""
    sync_api = package("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def serve(*options: str, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Serve the search page as the command does, on a free port; yield its address."""
    program = "import sys; from vlalign.train.cli.serve import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, *options, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as server:
        assert server.stdout is not None
        try:
            yield next(line for line in server.stdout if line.startswith("http")).split()[0]
        finally:  # else a failed test waits for the server for ever
            server.terminate()
