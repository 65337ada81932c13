"""`python -m ctr_pipeline` is `ctrpipe`."""

import sys

from ctr_pipeline.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
