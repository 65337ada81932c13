"""The container image that pods run: its recipe, what it installs, and who builds it."""

from enum import StrEnum


class Engine(StrEnum):
    """A program that builds images; they are looked for in this order."""

    DOCKER = "docker"
    PODMAN = "podman"
    BUILDAH = "buildah"


DEFAULT_BASE = "python:3.11-slim"
