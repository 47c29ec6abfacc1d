"""``ray submit CLUSTER.yaml ray_jobs/rehearse.py OPTIONS``: Ray copies this file to the head machine.

There it runs, with the vlalign that the cluster file installs. ``--help`` lists the options; ``@FILE`` reads options
from a file.
"""

import sys

from vlalign.ray_jobs.rehearsal.main import main

if __name__ == "__main__":
    sys.exit(main())
