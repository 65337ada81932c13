"""`python -m ctr_pipeline` is `ctrpipe`."""

from ctr_pipeline.cli.process import run_process

if __name__ == "__main__":
    run_process()
