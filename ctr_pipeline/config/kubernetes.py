"""The section `kubernetes:` of the config: what the pods of a job look like."""

import re
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from ctr_pipeline.specs.section import Section

Quantity = int | float | str
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?")
_VOLUME = re.compile(r"(claim|secret|config_map):[a-z0-9]([-.a-z0-9]*[a-z0-9])?")


class PodConfig(Section):
    """The pods of one role."""

    cpu: Quantity = Field(default=1, description="Cores that are reserved, such as 2 or 500m.")
    cpu_limit: Quantity | None = Field(
        default=None, description="Cores that may be used; null: as many as the node has to spare."
    )
    memory: Quantity = Field(
        default="2Gi", description="Memory that is reserved, and that may be used, such as 4Gi."
    )
    node_selector: dict[str, str] = Field(
        default={}, description="Labels of the nodes that may run them."
    )
    tolerations: tuple[dict[str, Any], ...] = Field(
        default=(), description="Tolerations as Kubernetes writes them."
    )
    priority_class: str | None = Field(
        default=None, min_length=1, description="Name of their PriorityClass."
    )
    patch: dict[str, Any] = Field(
        default={},
        description="Merged into their manifest, for what no key is for: mappings key by key, "
        "lists of named entries (the container is named ctrpipe) entry by entry, null deletes.",
    )

    @field_validator("cpu", "cpu_limit", "memory")
    @classmethod
    def _is_quantity(cls, value: Quantity | None) -> Quantity | None:
        if value is not None and not _QUANTITY.fullmatch(str(value)):
            raise ValueError(f"'{value}' is no quantity of Kubernetes; write 2, 500m or 4Gi")
        return value


class MemberPodConfig(PodConfig):
    """The pods of servers or workers, which are made one by one."""

    max_memory: Quantity | None = Field(
        default=None,
        description="Up to this, a pod in place of one that ran out of memory gets half as much "
        "more, such as 8Gi; null: each gets the same.",
    )

    @field_validator("max_memory")
    @classmethod
    def _is_size(cls, value: Quantity | None) -> Quantity | None:
        return cls._is_quantity(value)


class WorkerPodConfig(MemberPodConfig):
    """The pods of workers, the first of which may have another priority."""

    high: int = Field(
        default=0,
        ge=0,
        description="The first so many workers have high_priority_class, and the others "
        "priority_class, so that pods of other work take the place of the others alone.",
    )
    high_priority_class: str | None = Field(
        default=None, min_length=1, description="Name of the PriorityClass of the first workers."
    )

    @model_validator(mode="after")
    def _have_a_class(self) -> Self:
        if (self.high > 0) != (self.high_priority_class is not None):
            raise ValueError("high and high_priority_class are given together, or neither is")
        return self


class KubernetesConfig(Section):
    """The pods of a job that `ctrpipe submit` starts."""

    namespace: str | None = Field(
        default=None,
        pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        description="Namespace of the job; null: that of the current context of kubectl.",
    )
    image: str | None = Field(
        default=None, min_length=1, description="Image with ctrpipe; ctrpipe submit requires it."
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="When nodes pull the image."
    )
    image_pull_secrets: tuple[str, ...] = Field(
        default=(), description="Names of Secrets for the registry of the image."
    )
    claim: str | None = Field(
        default=None,
        min_length=1,
        description="Name of the PersistentVolumeClaim that all pods share; ctrpipe submit "
        "requires it. Relative paths of the config are those of this volume.",
    )
    folder: str = Field(
        default="/work", pattern="^/.", description="Folder that the claim is mounted as."
    )
    volumes: dict[str, str] = Field(
        default={},
        description="Further volumes that all pods may read: the folder that each is mounted as, "
        "and claim:NAME, secret:NAME or config_map:NAME.",
    )
    environment: dict[str, str] = Field(
        default={}, description="Environment variables of all pods; not for secrets."
    )
    environment_from_secrets: tuple[str, ...] = Field(
        default=(), description="Names of Secrets whose entries become environment variables."
    )
    metrics_from: str | None = Field(
        default=None,
        pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        description="Namespace whose pods may read metrics, such as that of Prometheus; null: only "
        "pods of the job may.",
    )
    queue: str | None = Field(
        default=None,
        pattern="^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$",
        max_length=63,
        description="Name of the LocalQueue of Kueue in which pods wait for quota; null: none.",
    )
    user: int = Field(
        default=10001,
        ge=1,
        description="Number of the user and group that the pods run as, never root.",
    )
    master: PodConfig = Field(
        default=PodConfig(),
        description="The driver, which prepares rows and starts other pods.",
    )
    parameter_servers: MemberPodConfig = Field(
        default=MemberPodConfig(), description="Pods that hold embedding rows."
    )
    workers: WorkerPodConfig = Field(
        default=WorkerPodConfig(), description="Pods that compute gradients."
    )

    @field_validator("volumes")
    @classmethod
    def _are_volumes(cls, value: dict[str, str]) -> dict[str, str]:
        for folder, volume in value.items():
            if not folder.startswith("/"):
                raise ValueError(f"'{folder}' is no absolute path; write /data: claim:NAME")
            if not _VOLUME.fullmatch(volume):
                raise ValueError(
                    f"'{volume}' is no volume; write claim:NAME, secret:NAME or config_map:NAME"
                )
        return value
