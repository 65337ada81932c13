"""The benchmarks, one after another.

Each is a command of its own, so one that fails does not stop the others; its results lie in a file
each. In quick form that takes nine minutes on two idle cores and tells that they work; left out
there are those that compare with other packages in environments of their own (`train_speed_peers`,
`train_speed_models`, `whole_job_beside` and its large form, `criteo_peers`, `auto_quality`, parts
of `feature_speed`), and `whole_job_large`. Numbers to publish come from the full form on a machine
that has nothing else to do, which takes a night. Left out of both are `elastic_demo.py` and
`kubernetes_demo.py`, which show and do not measure, `cluster`, `cluster_load` and `image`, which
need root and a Kubernetes that was built, `criteo_quality` and `criteo_peers` where no data is
named, and those of bfloat16 where the processor has no instructions for it.

    python benchmarks/every.py --quick
    python benchmarks/every.py --results results/ --only train_speed serve_speed
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ctr_pipeline.machine import multiplies_bfloat16, processor_flags

HERE = Path(__file__).resolve().parent
PEERS = ("--sides", "keras", "fuxictr", "deepctr_torch")


@dataclass(frozen=True)
class Benchmark:
    """A command of the full form, and what of it the quick form runs.

    Attributes:
        name: Of its results; the script's, unless one script fills several tables.
        arguments: Of the full form.
        quick: Of the quick form; None: it has none, for it needs packages that are not ours, or is
            the same as another but for its size.
        needs: A variable that has to name data which nobody may pass on.
        in_bfloat16: Whether the processor has to multiply that.
    """

    name: str
    arguments: tuple[str, ...] = ()
    quick: tuple[str, ...] | None = ("--quick",)
    script: str = ""
    needs: str = ""
    in_bfloat16: bool = False

    def reason_to_leave_out(self) -> str | None:
        """What this machine lacks for it."""
        if self.needs and self.needs not in os.environ:
            return f"{self.needs} names no data"
        if self.in_bfloat16 and not multiplies_bfloat16(processor_flags()):
            return "this processor has neither AMX nor AVX512-BF16"
        return None

    def command(self, results: Path, *, quick: bool) -> list[str]:
        """The command to be run."""
        script = HERE / f"{self.script or self.name}.py"
        arguments = (self.quick or ()) if quick else self.arguments
        return [
            sys.executable,
            str(script),
            *arguments,
            "--json",
            str(results / f"{self.name}.json"),
        ]


BENCHMARKS = (
    Benchmark("roofline"),
    Benchmark("store_speed"),
    Benchmark("train_speed"),
    Benchmark(
        "train_speed_peers",
        (*PEERS, "--rows", "104000", "2600000", "10400000", "--steps", "64"),
        quick=None,
        script="train_speed",
    ),
    Benchmark(
        "train_speed_models",
        (*PEERS, "--models", "wide_and_deep", "xdeepfm", "dcn", "dcnv2", "--steps", "64"),
        quick=None,
        script="train_speed",
    ),
    Benchmark(
        "train_speed_bfloat16",
        ("--sides", "bfloat16", "keras"),
        quick=None,
        script="train_speed",
        in_bfloat16=True,
    ),
    Benchmark("flatness"),
    Benchmark("step_modes"),
    Benchmark("startup"),
    Benchmark("recordio_speed"),
    Benchmark("feature_speed", quick=("--quick", "--only", "statistics", "kernels")),
    Benchmark("whole_job", ("--rows", "1_000_000", "4_000_000")),
    Benchmark("whole_job_large", ("--rows", "10_000_000"), quick=None, script="whole_job"),
    Benchmark(
        "whole_job_killed",
        ("--rows", "45_840_617", "--delay", "10"),
        quick=("--rows", "1_000_000", "--unit-rows", "100_000", "--delay", "0.2"),
    ),
    Benchmark("shared_preparation"),
    Benchmark("whole_job_beside", quick=None),
    Benchmark(
        "whole_job_beside_large",
        ("--rows", "10_000_000", "--stop-peer-at", "6.2"),
        quick=None,
        script="whole_job_beside",
    ),
    Benchmark("serve_speed"),
    Benchmark("export_size"),
    Benchmark("cut_pause"),
    Benchmark("ps_pauses"),
    Benchmark("cut_pause_job", ("--job",), ("--quick", "--job"), script="cut_pause"),
    Benchmark("ps_speed"),
    Benchmark("partition_moves"),
    Benchmark("master_load"),
    Benchmark("runtime_speed", ("--rows", "1_000_000"), ("--quick", "--only", "sides")),
    Benchmark("allreduce"),
    Benchmark("elastic_script"),
    Benchmark("scaling_simulator"),
    Benchmark(
        "chaos", ("--command", "train", "--together", "7"), ("--quick", "--fault", "ps_killed")
    ),
    Benchmark(
        "criteo_quality",
        ("--variants", "auto", "ensemble", "kinds", "refit", "refit_ensemble"),
        ("--quick", "--models", "deepfm"),
        needs="CTRPIPE_CRITEO_DATA",
    ),
    Benchmark(
        "criteo_quality_bfloat16",
        ("--models", "deepfm", "--variants", "bfloat16"),
        quick=None,
        script="criteo_quality",
        needs="CTRPIPE_CRITEO_DATA",
        in_bfloat16=True,
    ),
    Benchmark("generated_quality"),
    Benchmark("auto_quality", quick=None),
    Benchmark("criteo_peers", quick=None, needs="CTRPIPE_CRITEO_DATA"),
)


def main() -> int:
    """Runs them and says which failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [one.name for one in BENCHMARKS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="These.")
    parser.add_argument("--quick", action="store_true", help="Small, to see that they work.")
    parser.add_argument("--list", action="store_true", help="Print the commands and end.")
    parser.add_argument(
        "--results", type=Path, default=Path("runs/benchmarks"), help="Folder of the results."
    )
    arguments = parser.parse_args()
    failed = []
    for one in BENCHMARKS:
        if one.name not in arguments.only or (arguments.quick and one.quick is None):
            continue
        command = one.command(arguments.results, quick=arguments.quick)
        if arguments.list:
            print(shlex.join(command))
            continue
        lacking = one.reason_to_leave_out()
        if lacking is not None:
            print(f"{one.name}: left out, for {lacking}", flush=True)
            continue
        print(f"{one.name}: {shlex.join(command[1:])}", flush=True)
        arguments.results.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        code = subprocess.run(command, check=False).returncode
        seconds = time.perf_counter() - started
        print(f"{one.name}: {f'failed ({code})' if code else 'done'} in {seconds:.0f} s\n")
        if code:
            failed.append(one.name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
