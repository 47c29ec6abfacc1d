"""The process that reads text: it loads RapidOCR's models, confines itself, and turns frames into lines of text.

RapidOCR's package has the models (PP-OCRv6); nothing is downloaded. Frames are sent as bytes over a socket, and answers
as JSON: no answer can make the parent run code.
"""

import json
import logging
import os
import signal
import threading
from multiprocessing.connection import Connection

import numpy as np

from ...storage.common.child_connection import parent_socket
from ...storage.common.system import IS_LINUX, limit
from ..decoding import sandbox

MEMORY_BYTES = 8 << 30
"""Address space of the process. A frame of 1280 x 720 takes about 0.6 GB of memory."""


def main() -> None:
    """Read the text of one frame after another until the parent closes the connection."""
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)  # the parent ends this process
    connection = Connection(parent_socket().detach())
    limit("RLIMIT_AS", MEMORY_BYTES)
    sandbox.leave_network()

    import cv2
    from rapidocr import RapidOCR
    from rapidocr.utils.output import RapidOCROutput

    cv2.setNumThreads(0)
    logging.getLogger("RapidOCR").setLevel(logging.ERROR)
    engine = RapidOCR(
        params={
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            "Global.log_level": "error",
            "Global.use_cls": False,  # frames are upright
        }
    )
    sample = np.full((96, 320, 3), 255, np.uint8)
    cv2.putText(sample, "text", (40, 70), cv2.FONT_HERSHEY_SIMPLEX, 2, (0, 0, 0), 5)
    engine(sample)  # loads both models
    if IS_LINUX:
        sandbox.confine()
    else:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    connection.send_bytes(b"[]")
    while True:
        try:
            height, width = json.loads(connection.recv_bytes())
            frame = np.frombuffer(connection.recv_bytes(), np.uint8).reshape(height, width, 3)
        except EOFError:
            os._exit(0)
        found = engine(np.ascontiguousarray(frame[..., ::-1]))  # it expects BGR
        lines = []
        if isinstance(found, RapidOCROutput) and found.boxes is not None:
            for box, text, score in zip(found.boxes, found.txts or (), found.scores or (), strict=True):
                corners = np.clip(np.asarray(box) / [width, height], 0, 1)
                lines.append([text, float(score), *corners.min(axis=0).tolist(), *corners.max(axis=0).tolist()])
        connection.send_bytes(json.dumps(lines).encode())


def _end_with_parent() -> None:
    os.read(0, 1)
    os._exit(1)
