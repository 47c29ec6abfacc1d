"""``ray submit CLUSTER.yaml train.py OPTIONS``: Ray copies this one file to the head machine and runs it there."""

import sys

from vlalign.ray_jobs.training import main

if __name__ == "__main__":
    sys.exit(main())
