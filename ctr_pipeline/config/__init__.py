"""The YAML config: typed models, loading with every error at once, JSON Schema."""

from ctr_pipeline.config.loader import (
    LoadedConfig,
    config_from_mapping,
    load_config,
    load_kubernetes,
)
from ctr_pipeline.config.merging import MergedEntry, merge_entries
from ctr_pipeline.config.models import Config
from ctr_pipeline.config.resolved import resolved_yaml
from ctr_pipeline.config.schema import json_schema

__all__ = [
    "Config",
    "LoadedConfig",
    "MergedEntry",
    "config_from_mapping",
    "json_schema",
    "load_config",
    "load_kubernetes",
    "merge_entries",
    "resolved_yaml",
]
