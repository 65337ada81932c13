"""The driver of a job as its pod runs it, with the pods of its members as processes here.

python -m tests.distributed.launchers.driver_here PODS_FOLDER run config.yaml …
"""

import sys
from pathlib import Path

from ctr_pipeline.cli.main import main
from ctr_pipeline.distributed.launchers.kubernetes import drivers, launcher
from tests.distributed.launchers.kubernetes_pods import LocalPods


class _Api:
    @staticmethod
    def in_pod(_namespace):
        return LocalPods(Path(sys.argv[1]))


if __name__ == "__main__":
    drivers.KubernetesApi = launcher.KubernetesApi = _Api
    sys.exit(main(sys.argv[2:]))
