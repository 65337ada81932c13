"""A model of the user's own, from a Python file.

The file defines one function:

    def build_model(inputs: ModelInputs, options: Mapping[str, Any]) -> keras tensor

`inputs` has `embeddings_BFD` (batch, fields, dim), `linear_BF` (batch, fields), `numbers_BN`
(batch, numbers), `flat_BK` (all of embeddings and numbers, flat) and `signature` with the sizes
and `base_logit`; `options` is `model.options` of the config. It returns the *logit* of each row,
shape (batch,), complete: the linear term and the bias as well, for which
`ctr_pipeline.models.layers.Linear` is at hand. Layers draw their initial weights from the run's
seed where they name no seed of their own. State that training changes other than by gradients,
such as batch normalisation's, is refused. For dropout take
`ctr_pipeline.models.layers.SeededDropout`, which XLA compiles well.
"""

import importlib.util
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import keras

from ctr_pipeline.errors import ModelError
from ctr_pipeline.models.inputs import ModelInputs
from ctr_pipeline.models.seeds import derive_seeds
from ctr_pipeline.specs.model_kinds import CustomModelConfig

_FUNCTION = "build_model"


def build(inputs: ModelInputs, config: CustomModelConfig, seed: int) -> Any:
    """Runs the user's `build_model`.

    Returns:
        Logits, a symbolic tensor of shape (batch,).

    Raises:
        ModelError: The file cannot be read or run, has no `build_model`, or that fails or returns
            something else; the place is `file:line` wherever there is one.
    """
    file = Path(config.file)
    module = _load_module(file)
    function = getattr(module, _FUNCTION, None)
    if not callable(function):
        raise ModelError(
            f"defines no function '{_FUNCTION}'",
            place=str(file),
            remedy=f"Define {_FUNCTION}(inputs, options) that returns the logits",
        )
    # Layers of the user without a seed of their own are then as reproducible as ours.
    keras.utils.set_random_seed(derive_seeds(seed, 1)[0])
    try:
        logit_B = function(inputs, config.options)
    except Exception as error:
        raise _explain(error, file) from error
    line = function.__code__.co_firstlineno if hasattr(function, "__code__") else 1
    _check_logit(logit_B, f"{file}:{line}")
    return logit_B


def _load_module(file: Path) -> ModuleType:
    if not file.is_file():
        raise ModelError(
            "no such file", place=str(file), remedy="Set 'model.file' to your Python file"
        )
    spec = importlib.util.spec_from_file_location("ctr_pipeline_custom_model", file)
    if spec is None or spec.loader is None:
        raise ModelError("is not a Python file", place=str(file), remedy="Let its name end in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _explain(error, file) from error
    return module


def _explain(error: Exception, file: Path) -> ModelError:
    """The error with the last line of the user's file that took part in it."""
    if isinstance(error, SyntaxError) and Path(error.filename or "").resolve() == file.resolve():
        place = f"{file}:{error.lineno}"
        message = error.msg
    else:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [
            frame.lineno for frame in frames if Path(frame.filename).resolve() == file.resolve()
        ]
        place = f"{file}:{lines[-1]}" if lines else str(file)
        message = str(error)
    first_line = message.strip().splitlines()[0] if message.strip() else "no message"
    return ModelError(
        f"{type(error).__name__}: {first_line}", place=place, remedy="Correct the model's code"
    )


def _check_logit(logit_B: Any, place: str) -> None:
    if not isinstance(logit_B, keras.KerasTensor):
        raise ModelError(
            f"{_FUNCTION} returned {type(logit_B).__name__}, not a Keras tensor",
            place=place,
            remedy="Return the logits, a tensor of shape (batch,), made from the inputs",
        )
    if tuple(logit_B.shape) != (None,):
        shape = ", ".join("batch" if size is None else str(size) for size in logit_B.shape)
        raise ModelError(
            f"{_FUNCTION} returned a tensor of shape ({shape}), not (batch,)",
            place=place,
            remedy="Return one logit a row; keras.ops.squeeze(x, axis=-1) drops a last axis of 1",
        )
    if logit_B.dtype != "float32":
        raise ModelError(
            f"{_FUNCTION} returned {logit_B.dtype}, not float32",
            place=place,
            remedy="Cast the logits with keras.ops.cast(x, 'float32')",
        )
