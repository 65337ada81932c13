"""Puts each replica behind a proxy, which lets nothing through while a file names its address.

For processes of a run that have this folder in `PYTHONPATH`; the file is `CUT_REPLICAS`.
"""

import os
import sys
import threading
import time
from pathlib import Path


def put_behind_proxy(direct):
    from tests.distributed.faults.proxy import FaultyProxy

    proxy = FaultyProxy(direct)
    cut, is_cut = Path(os.environ["CUT_REPLICAS"]), False

    def follow():
        nonlocal is_cut
        while True:
            named = proxy.address in (cut.read_text() if cut.exists() else "")
            if named != is_cut:
                is_cut = named
                (proxy.stall if is_cut else proxy.heal)()
            time.sleep(0.05)

    threading.Thread(target=follow, daemon=True).start()
    return proxy.address


# Workers are forked from this process.
if "ctr_pipeline.cli.fork_server" in sys.orig_argv:
    from ctr_pipeline.distributed.replicas import world

    reachable = world.reachable_address
    world.reachable_address = lambda address: put_behind_proxy(reachable(address))
