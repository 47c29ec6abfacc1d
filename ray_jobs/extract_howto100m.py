"""``ray submit CLUSTER.yaml extract_howto100m.py OPTIONS``: Ray copies this file to the head machine and runs it there.

The cluster file installs vlalign there. ``--help`` lists the options; ``@FILE`` reads options from a file.
"""

import sys

from vlalign.ray_jobs.extraction import main

if __name__ == "__main__":
    sys.exit(main())
