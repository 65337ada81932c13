"""The YAML config: typed models, loading with every error at once, JSON Schema."""

from ctr_pipeline.config.loader import (
    LoadedConfig,
    config_from_mapping,
    entries_by_feature,
    load_config,
)
from ctr_pipeline.config.models import Config
from ctr_pipeline.config.resolved import resolved_yaml
from ctr_pipeline.config.schema import json_schema

__all__ = [
    "Config",
    "LoadedConfig",
    "config_from_mapping",
    "entries_by_feature",
    "json_schema",
    "load_config",
    "resolved_yaml",
]
