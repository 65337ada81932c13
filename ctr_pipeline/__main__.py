"""`python -m ctr_pipeline` is `ctrpipe`."""

import sys

from ctr_pipeline.cli.main import program

if __name__ == "__main__":
    sys.exit(program())
