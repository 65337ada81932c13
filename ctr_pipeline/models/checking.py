"""Whether a `model:` section fits its model, and the sections of an ensemble's members."""

from collections.abc import Sequence

from ctr_pipeline.config.key_facts import keys_set
from ctr_pipeline.config.models import ModelConfig
from ctr_pipeline.specs.model_kinds import MODELS, names_with, nearest_model_name


def member_model(config: ModelConfig, name: str) -> ModelConfig:
    """The section of a model of kind `name`, with the keys of `config` that this kind uses."""
    return ModelConfig(
        **{key: getattr(config, key) for key in MODELS[name].keys if key != "name"}, name=name
    )


def check_model(config: ModelConfig, members: Sequence[str] = ()) -> list[str]:
    """What is wrong with the `model:` section, one sentence a problem; empty if nothing is.

    A key that the model does not use is a problem only where it is set to something else than its
    default: a resolved config spells all of them out.

    Args:
        config: The section.
        members: `train.ensemble_models`, whose keys it may hold as well.
    """
    unknown = [name for name in (config.name, *members) if name not in MODELS]
    if unknown:
        near = nearest_model_name(unknown[0])
        hint = f" (did you mean '{near}'?)" if near else ""
        return [f"unknown model '{unknown[0]}'{hint}; there are {', '.join(MODELS)}"]
    kinds = list(dict.fromkeys((config.name, *members)))
    used = frozenset[str]().union(*(MODELS[kind].keys for kind in kinds))
    problems = []
    for key in sorted(keys_set(config) - used):
        named = " and ".join(f"'{kind}'" for kind in kinds)
        has = "has" if len(kinds) == 1 else "have"
        problems.append(f"{named} {has} no key '{key}'; it belongs to {names_with(key)}")
    if "custom" in members and config.name != "custom":
        problems.append(
            "'custom' in train.ensemble_models needs the model's file: set model.name to custom as "
            "well"
        )
    problems += [
        f"'{kind}' needs the key 'target': the feature with which sequences are compared"
        for kind in kinds
        if MODELS[kind].looks_into_sequences and config.target is None
    ]
    if "finalmlp" in kinds:
        problems += _check_heads(config)
    return problems


def _check_heads(config: ModelConfig) -> list[str]:
    """Heads cut the last layer of each stream into equal pieces."""
    streams = (config.hidden_units, config.second_hidden_units or config.hidden_units)
    last = {units[-1] if units else 0 for units in streams}
    if 0 in last:
        return ["'finalmlp' needs at least one layer in hidden_units and second_hidden_units"]
    return [
        f"fusion_heads {config.fusion_heads} does not divide the last layer's {units} units"
        for units in sorted(last)
        if units % config.fusion_heads
    ]
