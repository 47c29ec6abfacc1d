"""``ray submit CLUSTER.yaml extract_howto100m.py OPTIONS``: Ray copies this one file to the head machine and runs it
there.

vlalign is installed there by the cluster file's own commands. ``--help`` has the options; ``@FILE`` reads some from a
file.
"""

import sys

from vlalign.ray_jobs.extraction import main

if __name__ == "__main__":
    sys.exit(main())
