"""What every mapping of the YAML is."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    """A mapping of the YAML; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _complete_from_defaults(cls, given: Any) -> Any:
        """Gives a mapping that lacks required keys, such as an optimizer's name, the default's.

        So `train.optimizer.learning_rate` alone changes the default optimizer's rate.
        """
        if not isinstance(given, dict):
            return given
        completed = dict(given)
        for key, field in cls.model_fields.items():
            value, default = given.get(key), field.default
            if isinstance(value, dict) and isinstance(default, Section):
                completed[key] = _completed(value, default)
        return completed


def _completed(given: dict[str, Any], default: Section, *, fill: bool = False) -> dict[str, Any]:
    """What is given, completed by the default where a required key is absent from it.

    Args:
        given: A mapping of the YAML.
        fill: Whether all that is absent is taken from the default, as inside a completed mapping.
    """
    fields = type(default).model_fields
    lacks = any(field.is_required() and key not in given for key, field in fields.items())
    # One that names another optimizer does not begin with this one's learning rate.
    fill = (fill or lacks) and "name" not in given
    completed = {**(default.model_dump(exclude_unset=True) if fill else {}), **given}
    for key in fields:
        inner = getattr(default, key)
        if isinstance(given.get(key), dict) and isinstance(inner, Section):
            completed[key] = _completed(given[key], inner, fill=fill)
    return completed
