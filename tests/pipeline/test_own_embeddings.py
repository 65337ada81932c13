"""What a config says of the embeddings of some features, as the store gets it."""

import pytest

from ctr_pipeline.config.loader import config_from_mapping, load_config
from ctr_pipeline.embeddings.specs import OptimizerSpec
from ctr_pipeline.features import ColumnType, FeatureSpec, Hash
from ctr_pipeline.pipeline.rows import row_layout, segment_specs, table_specs
from ctr_pipeline.preprocessing.fitted import FieldPlan, FittedHash, PreprocessingPlan


def field(name, *, column=None, table=None, num_ids=11):
    return FieldPlan(
        name=name,
        column=column or name,
        column_type=ColumnType.TEXT,
        transforms=("hash",),
        num_ids=num_ids,
        step=FittedHash(num_bins=num_ids - 1, missing_id=num_ids - 1),
        table=table,
    )


def plan_of(*fields):
    return PreprocessingPlan(fields=fields, numbers=())


def config_of(features, **sections):
    settings = {"data": {"train": "rows.csv", "label": "click"}, "features": features, **sections}
    return config_from_mapping(settings).config


HASHED = {"id": {"hash": {"buckets": 10}}}
OWN = {
    "linear": {"l2": {"strength": 3.0}},
    "vector": {
        "optimizer": {"name": "sgd", "learning_rate": 0.5},
        "reduction": "sum",
        "initial_range": 0.25,
    },
}


def test_what_is_not_said_is_as_in_train():
    config = config_of([{"columns": ["a", "b"], **HASHED}, {"columns": "b", "embedding": OWN}])
    linear, vector = segment_specs(config.model, config.train)
    plain, own = table_specs(config, plan_of(field("a"), field("b")))
    assert plain.segments is None
    assert [segment.name for segment in own.segments] == ["linear", "vector"]
    assert own.segments[0].l2_strength == 3.0
    assert own.segments[0].l2_count_power == linear.l2_count_power
    assert own.segments[0].optimizer == linear.optimizer
    assert own.segments[1].optimizer == OptimizerSpec("sgd", 0.5)
    assert (own.segments[1].reduction, own.segments[1].initial_range) == ("sum", 0.25)
    assert own.segments[1].l2_strength == vector.l2_strength
    assert own.segments[1].dim == vector.dim
    assert len(row_layout(config, plan_of(field("a"), field("b"))).groups) == 2


def test_what_one_feature_of_a_table_says_holds_for_all_its_rows():
    config = config_of(
        [
            {"columns": "item", **HASHED},
            {"columns": "past", **HASHED, "embedding": {"share": "item", **OWN}},
        ]
    )
    (table,) = table_specs(config, plan_of(field("item"), field("past", table="item")))
    assert table.name == "item"
    assert table.segments[1].initial_range == 0.25


def test_every_field_of_a_feature_and_every_feature_of_an_entry_is_meant():
    config = config_of(
        ["auto", {"columns": "*", "embedding": {"vector": {"initial_range": 0.5}}}]
    )
    plan = plan_of(field("t.hour", column="t"), field("t.day", column="t"), field("c"))
    ranges = [table.segments[1].initial_range for table in table_specs(config, plan)]
    assert ranges == [0.5, 0.5, 0.5]
    none = config_of("auto")
    assert [table.segments for table in table_specs(none, plan)] == [None] * 3


def test_saying_what_holds_anyway_changes_nothing():
    config = config_of([{"columns": "a", **HASHED, "embedding": {"vector": {"reduction": "mean"}}}])
    (table,) = table_specs(config, plan_of(field("a")))
    assert table.segments is None


@pytest.mark.parametrize("features", [[{"columns": "a", **HASHED, "embedding": OWN}], "auto"])
def test_a_resolved_config_means_the_same(features, tmp_path):
    config = config_of(features, output=str(tmp_path))
    settings = {
        "data": {"train": "rows.csv", "label": "click"},
        "features": features,
        "output": str(tmp_path),
    }
    path = tmp_path / "config.resolved.yaml"
    path.write_text(config_from_mapping(settings).resolved_yaml())
    plan = plan_of(field("a"))
    assert table_specs(load_config(path).config, plan) == table_specs(config, plan)
    assert ("embedding:" in path.read_text().replace("embeddings:", "")) == (features != "auto")


def test_entries_and_features_without_it_are_written_as_before():
    spec = FeatureSpec(column="a", column_type=ColumnType.TEXT, id=(Hash(buckets=10),))
    assert "table" not in spec.model_dump_json()
    assert "embedding" not in config_of([{"columns": "a", **HASHED}]).features[0].model_dump()
