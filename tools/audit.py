"""Looks up known weaknesses of pinned packages, and lists the installed packages.

The list is CycloneDX 1.6 JSON. pip-audit, which is installed beside the project, looks up the
weaknesses. If it cannot reach its service, the output says so, and this is no failure.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from ctr_pipeline.apps.image.sbom import describe_installed

_SECONDS = 300


def weaknesses_of(answer: Mapping[str, Any]) -> list[str]:
    """A line for each known weakness in what pip-audit answers as JSON."""
    return [
        f"{package['name']} {package['version']}: {one['id']}"
        f" (mended in {', '.join(one['fix_versions']) or 'no version yet'})"
        for package in answer["dependencies"]
        for one in package.get("vulns", ())
    ]


def unanswered_in(answer: Mapping[str, Any]) -> list[str]:
    """Packages that pip-audit skipped: nothing is known of them, which is no all-clear."""
    return [package["name"] for package in answer["dependencies"] if "vulns" not in package]


def look_up(pip_audit: Path, requirements: Path) -> Mapping[str, Any] | None:
    """What pip-audit answers of pinned packages; None if it gives no answer."""
    command = [str(pip_audit), "--requirement", str(requirements), "--disable-pip"]
    command += ["--format", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(  # noqa: S603  our own arguments
            command, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
        answer: Mapping[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        # Without an answer pip-audit ends as it does with weaknesses, but writes no JSON.
        return None
    return answer


def main() -> int:
    """Ends with 1 if a weakness is known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pip-audit", type=Path, required=True, help="the program")
    parser.add_argument("--sbom", type=Path, default=Path("sbom.json"))
    parser.add_argument("requirements", type=Path, nargs="+")
    arguments = parser.parse_args()
    document = describe_installed(distributions())
    arguments.sbom.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    write = sys.stdout.write
    write(f"{arguments.sbom}: {len(document['components'])} packages are installed\n")
    failed = False
    for requirements in arguments.requirements:
        answer = look_up(arguments.pip_audit, requirements)
        if answer is None:
            write(f"{requirements}: NOT AUDITED, the advisory service cannot be reached\n")
            continue
        found, unanswered = weaknesses_of(answer), unanswered_in(answer)
        if unanswered:
            total = len(answer["dependencies"])
            write(f"{requirements}: NOT AUDITED, no answer for {len(unanswered)} of {total}\n")
        write("".join(f"{requirements}: {line}\n" for line in found))
        num_looked_up = len(answer["dependencies"]) - len(unanswered)
        write(f"{requirements}: {len(found)} known weaknesses of {num_looked_up} packages\n")
        failed = failed or bool(found)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
