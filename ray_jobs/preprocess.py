"""``ray submit CLUSTER.yaml preprocess.py OPTIONS``: Ray copies this one file to the head machine and runs it there."""

import sys

from vlalign.ray_jobs.preprocessing import main

if __name__ == "__main__":
    sys.exit(main())
