import json

import pytest

from ctr_pipeline.distributed.coordination.spec import EncodedSplit
from ctr_pipeline.distributed.rpc.spec_file import load_spec, save_spec
from ctr_pipeline.errors import RunFolderError
from ctr_pipeline.specs.initializer import InitializerSpec
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.specs.segment import SegmentSpec
from ctr_pipeline.specs.table import TableSpec
from tests.distributed.job_specs import job_spec

SPEC = job_spec(
    seed=2**63 - 1,
    tables=(TableSpec("user_id", 100),),
    segments=(
        SegmentSpec(
            "linear",
            1,
            OptimizerSpec(name="adam", learning_rate=0.01),
            "sum",
            0.0,
            0,
            InitializerSpec(scale=0.01),
        ),
    ),
    counts_file="counts.npy",
    splits=(EncodedSplit("train", "cache/encoded/train", 1000),),
)


def test_a_saved_spec_is_read_as_it_was(tmp_path):
    save_spec(tmp_path, SPEC)
    assert load_spec(tmp_path) == SPEC
    assert json.loads((tmp_path / "spec.json").read_text())["job"] == "job-1"


def test_a_missing_spec_says_how_to_make_one(tmp_path):
    with pytest.raises(RunFolderError, match=r"no job was prepared here.*ctrpipe run"):
        load_spec(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"protocol": 1}', "{broken"])
def test_a_damaged_spec_is_named(tmp_path, content):
    (tmp_path / "spec.json").write_text(content)
    with pytest.raises(RunFolderError, match=r"spec\.json: is damaged"):
        load_spec(tmp_path)


def test_another_protocol_is_told_before_anything_else(tmp_path):
    (tmp_path / "spec.json").write_text('{"protocol": 7, "new_key": 1}')
    with pytest.raises(RunFolderError, match="of protocol 7, and this program speaks 1"):
        load_spec(tmp_path)
