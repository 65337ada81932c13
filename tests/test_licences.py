"""What is installed beside the package may be used with it."""

import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# SPDX terms. MPL-2.0 asks for changes of its own files alone, and none are made.
ALLOWED = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause",
    "CC0-1.0", "ISC", "MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Unlicense", "Zlib",
}  # fmt: skip

# As older metadata writes them: a classifier, or a line of its own.
SPOKEN = {
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}

# Those whose metadata says nothing, and what their own files say.
READ_BY_HAND = {"namex": "Apache-2.0"}
FOUND = {one.metadata["Name"]: one for one in distributions()}
PACKAGES = sorted((name, one) for name, one in FOUND.items() if name != "ctrpipe")


def terms_of(distribution):
    """Every licence that applies, as alternatives of terms that hold together."""
    metadata = distribution.metadata
    name = metadata["Name"]
    if name in READ_BY_HAND:
        return [[READ_BY_HAND[name]]]
    spoken = metadata.get("License-Expression")
    if not spoken:
        classified = [
            one.rsplit("::", 1)[1].strip()
            for one in metadata.get_all("Classifier") or ()
            if one.startswith("License ::") and "DFSG" not in one
        ]
        spoken = " AND ".join(SPOKEN.get(one.lower(), one) for one in classified)
    if not spoken:
        first = (metadata.get("License") or "").splitlines()[:1]
        spoken = SPOKEN.get(first[0].lower(), first[0]) if first else ""
    return [
        [term.strip("() ") for term in choice.split(" AND ")]
        for choice in re.split(r"\s+OR\s+", spoken)
    ]


@pytest.mark.parametrize(("name", "distribution"), PACKAGES, ids=[name for name, _ in PACKAGES])
def test_each_may_be_used(name, distribution):
    assert any(set(terms) <= ALLOWED for terms in terms_of(distribution)), terms_of(distribution)


def test_the_package_says_its_own():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / project["license-files"][0]).read_text()
