"""The software bill of materials: which packages are installed, as CycloneDX 1.6 JSON.

python -m ctr_pipeline.apps.image.sbom > sbom.json
"""

import json
import sys
import uuid
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from typing import Any


def describe_installed(found: Iterable[Distribution]) -> dict[str, Any]:
    """The packages as a CycloneDX document, by name."""
    named = {one.metadata["Name"]: one for one in found}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "ctrpipe"}},
        "components": [
            _describe(name, one) for name, one in sorted(named.items()) if name != "ctrpipe"
        ],
    }


def _describe(name: str, found: Distribution) -> dict[str, Any]:
    purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{found.version}"
    licence = found.metadata.json.get("license_expression")
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": found.version,
        "purl": purl,
        **({"licenses": [{"expression": licence}]} if licence else {}),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(describe_installed(distributions()), indent=1) + "\n")
