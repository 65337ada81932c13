"""Values of new rows: by which rule, with its constant."""

from typing import Literal

from pydantic import Field

from ctr_pipeline.specs.section import Section

InitializerName = Literal["zeros", "uniform", "normal"]


class InitializerSpec(Section):
    """Where the values of new rows come from; `embeddings.initializers` has the formulas."""

    name: InitializerName = Field(default="uniform", description="Distribution of the values.")
    scale: float = Field(
        default=0.05,
        ge=0,
        description="uniform: values are between - and + this; normal: standard deviation.",
    )


ZEROS = InitializerSpec(name="zeros")
