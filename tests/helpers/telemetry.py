"""What ONNX Runtime's telemetry writes: it keeps a device ID and its unsent events in the user's cache."""

import os
from pathlib import Path


def telemetry_files() -> dict[str, int]:
    """Return the files of the telemetry, each with the time of its last change in ns."""
    import pwd  # not on Windows

    # the processes that use ONNX Runtime get no HOME, so it asks the system
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    folder = home / ".cache" / "Microsoft" / "DeveloperTools" / ".onnxruntime"
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*")}
