"""Virtual environments of other packages, for benchmarks beside them; made once and kept."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# FuxiCTR calls an argument that polars 2 removed, and names no PyTorch.
FUXICTR = ("fuxictr==2.3.10", "polars<2")
PEERS = (*FUXICTR, "deepctr-torch==0.3.0", "torch==2.13.0")
LIGHTGBM = ("lightgbm==4.7.0",)
KEPT_IN = Path.home() / ".cache" / "ctrpipe-benchmarks"


def make_environment(folder: Path, requirements: Sequence[str]) -> Path:
    """The Python of a virtual environment with these packages; one that is there is taken."""
    python, finished = folder / "bin" / "python", folder / ".finished"
    wanted = "\n".join(requirements)
    if finished.exists() and finished.read_text(encoding="utf-8") == wanted:
        return python
    print(f"  making {folder} with {', '.join(requirements)}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *requirements], check=True)
    finished.write_text(wanted, encoding="utf-8")
    return python


def make_peers(kept_in: Path) -> Path:
    """The Python of the environment in which the peers train."""
    return make_environment(kept_in.expanduser().resolve() / "peers", PEERS)


def make_lightgbm(kept_in: Path) -> Path:
    """The Python of an environment with LightGBM alone, so that the peers' stays as it is."""
    return make_environment(kept_in.expanduser().resolve() / "lightgbm", LIGHTGBM)


def try_package(
    folder: Path, package: str, module: str, *, beside: Sequence[str] = ()
) -> tuple[Path | None, str]:
    """The Python of an environment in which a package works, if there is one; what was said.

    Args:
        folder: Of the environment, made once and kept.
        package: As the index names it.
        module: As it is imported.
        beside: Other packages to install with it.
    """
    python, finished = folder / "bin" / "python", folder / ".finished"
    if not finished.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    steps = {
        "pip install --dry-run": ["-m", "pip", "install", "--dry-run", package, *beside],
        "pip install": ["-m", "pip", "install", "--quiet", package, *beside],
        "import": ["-c", f"import {module}"],
    }
    for step, arguments in steps.items():
        if step != "import" and finished.exists():
            continue
        print(f"  {package}: {step}", file=sys.stderr)
        done = subprocess.run(
            [str(python), *arguments], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            errors = [line for line in lines if "rror" in line and "notice" not in line]
            said = (errors or lines or ["without a message"])[-1].strip()
            return None, f"{step} fails: {said}".replace("|", "/")
    finished.write_text(package, encoding="utf-8")
    shown = subprocess.run(
        [str(python), "-m", "pip", "show", package], capture_output=True, text=True, check=True
    ).stdout
    version = shown.partition("Version: ")[2].split()[0]
    return python, f"{package} {version} installs and is imported"
