"""DCN V2, the parallel structure.

Wang et al. 2021, "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale
Learning to Rank Systems" (arXiv:2008.13535).
"""

from typing import Any

from ctr_pipeline.models.dcn import build_parallel
from ctr_pipeline.models.inputs import ModelInputs
from ctr_pipeline.specs.model_kinds import DCNv2Config


def build(inputs: ModelInputs, config: DCNv2Config, seed: int) -> Any:
    """Builds cross layers beside the deep network, "parallel" in Section 3.4.

    The matrices are full, Eq. (1), or of `cross_rank`, Eq. (2). The linear term is added to the
    paper's two networks.

    Returns:
        Logits, (batch,).
    """
    return build_parallel(inputs, config, seed, "matrix", config.cross_rank)
