"""``ray submit CLUSTER.yaml rehearse.py OPTIONS``: Ray copies this file to the head machine and runs it there.

The cluster file installs vlalign there. ``--help`` lists the options; ``@FILE`` reads options from a file.
"""

import sys

from vlalign.ray_jobs.rehearsal.main import main

if __name__ == "__main__":
    sys.exit(main())
