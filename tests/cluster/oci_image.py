"""Writes container images as OCI archives, without a container engine."""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_LAYER = "application/vnd.oci.image.layer.v1.tar"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def write_image(
    archive: Path,
    name: str,
    fill: Callable[[tarfile.TarFile], None],
    *,
    entrypoint: Sequence[str],
    environment: Mapping[str, str],
) -> None:
    """Writes an image of one layer.

    Args:
        archive: The file to write; its folder has room for the layer twice.
        name: With its tag, such as `localhost/pause:1`.
        fill: Adds the files of the layer to a tar archive.
        entrypoint: What a container runs.
        environment: Of the container.
    """
    layer = archive.with_suffix(".layer")
    try:
        with tarfile.open(layer, "w") as content:
            fill(content)
        with layer.open("rb") as stream:
            layer_digest = hashlib.file_digest(stream, "sha256").hexdigest()
        config = _json(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {
                    "Entrypoint": list(entrypoint),
                    "Env": [f"{key}={value}" for key, value in environment.items()],
                },
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
            }
        )
        manifest = _json(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": _descriptor(_CONFIG, _digest(config), len(config)),
                "layers": [_descriptor(_LAYER, layer_digest, layer.stat().st_size)],
            }
        )
        entry = _descriptor(_MANIFEST, _digest(manifest), len(manifest))
        entry["annotations"] = {"io.containerd.image.name": name}
        with tarfile.open(archive, "w") as whole:
            _add(whole, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
            _add(whole, "index.json", _json({"schemaVersion": 2, "manifests": [entry]}))
            _add(whole, f"blobs/sha256/{_digest(config)}", config)
            _add(whole, f"blobs/sha256/{_digest(manifest)}", manifest)
            whole.add(layer, f"blobs/sha256/{layer_digest}")
    finally:
        layer.unlink(missing_ok=True)


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _descriptor(kind: str, digest: str, size: int) -> dict[str, object]:
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": size}


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
