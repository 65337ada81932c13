"""What a config says of the embeddings of some features, as the store gets it."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ctr_pipeline
from ctr_pipeline.config.loader import config_from_mapping, load_config
from ctr_pipeline.config.models import EmbeddingEntry
from ctr_pipeline.pipeline.model.embedding_overrides import dimension_of
from ctr_pipeline.pipeline.model.embedding_rows import (
    field_dims,
    row_layout,
    segment_specs,
    table_specs,
)
from ctr_pipeline.preprocessing.plan import FieldPlan, PreprocessingPlan
from ctr_pipeline.specs.columns import ColumnType
from ctr_pipeline.specs.optimizer import OptimizerSpec
from ctr_pipeline.transforms.hash import HashStep
from tests.pipeline.feeds import write_feeds
from tests.pipeline.test_crosses import settings_of


def field(name, *, column=None, table=None, num_ids=11, prior_precision=None):
    return FieldPlan(
        name=name,
        column=column or name,
        column_type=ColumnType.TEXT,
        transforms=("hash",),
        num_ids=num_ids,
        step=HashStep(num_bins=num_ids - 1, missing_id=num_ids - 1),
        table=table,
        prior_precision=prior_precision,
    )


def plan_of(*fields):
    return PreprocessingPlan(fields=fields, numbers=())


def config_of(features, **sections):
    settings = {"data": {"train": "rows.csv", "label": "click"}, "features": features, **sections}
    return config_from_mapping(settings).config


HASHED = {"id": {"hash": {"buckets": 10}}}
GENTLE = {"optimizer": {"name": "sgd", "learning_rate": 0.02}, "l2": {"strength": 0.0}}
OWN = {
    "linear": {"l2": {"strength": 3.0}},
    "vector": {
        "optimizer": {"name": "sgd", "learning_rate": 0.5},
        "reduction": "sum",
        "initializer": {"name": "uniform", "scale": 0.25},
    },
}


def test_embedding_settings_are_as_in_train_when_not_given():
    config = config_of([{"columns": ["a", "b"], **HASHED}, {"columns": "b", "embedding": OWN}])
    linear, vector = segment_specs(config.model, config.train)
    plain, own = table_specs(config, plan_of(field("a"), field("b")))
    assert plain.segments is None
    assert [segment.name for segment in own.segments] == ["linear", "vector"]
    assert own.segments[0].l2_strength == 3.0
    assert own.segments[0].l2_count_power == linear.l2_count_power
    assert own.segments[0].optimizer == linear.optimizer
    assert own.segments[1].optimizer == OptimizerSpec(name="sgd", learning_rate=0.5)
    assert (own.segments[1].reduction, own.segments[1].initializer.scale) == ("sum", 0.25)
    assert own.segments[1].l2_strength == vector.l2_strength
    assert own.segments[1].dim == vector.dim
    assert len(row_layout(config, plan_of(field("a"), field("b"))).groups) == 2


def test_linear_weights_are_shrunk_as_their_columns_tell_little_about_the_click():
    plan = plan_of(
        field("much", prior_precision=2.5),
        field("little", prior_precision=40.0),
        field("unknown"),
        field("told", prior_precision=40.0),
        field("one", table="both", prior_precision=80.0),
        field("other", table="both", prior_precision=50.0),
    )
    entries = ["auto", {"columns": "told", "embedding": OWN}]
    config = config_of(entries)
    common = segment_specs(config.model, config.train)
    tables = {table.name: table.segments for table in table_specs(config, plan)}
    assert {name: (one or common)[0].l2_strength for name, one in tables.items()} == {
        "much": 10.0,
        "little": 40.0,
        "unknown": 10.0,
        "told": 3.0,
        "both": 50.0,
    }
    assert all((one or common)[1] == common[1] for name, one in tables.items() if name != "told")


@pytest.mark.parametrize(
    "embeddings",
    [
        {"shrink_by_column": False},
        {"linear": {"l2": {"strength": 0.0}}},
        {"linear": {"l2": {"count_power": 2}}},
        {"linear": {"l2": {"strength": 50.0}}},
    ],
)
def test_linear_weights_of_all_columns_are_shrunk_alike_if_the_config_says_so(embeddings):
    config = config_of("auto", train={"embeddings": embeddings})
    (table,) = table_specs(config, plan_of(field("little", prior_precision=40.0)))
    assert table.segments is None


def test_embedding_settings_of_one_feature_hold_for_all_rows_of_its_table():
    config = config_of(
        [
            {"columns": "item", **HASHED},
            {"columns": "past", **HASHED, "embedding": {"share": "item", **OWN}},
        ]
    )
    (table,) = table_specs(config, plan_of(field("item"), field("past", table="item")))
    assert table.name == "item"
    assert table.segments[1].initializer.scale == 0.25


def test_every_field_of_a_feature_and_every_feature_of_an_entry_is_meant():
    config = config_of(
        [
            "auto",
            {
                "columns": "*",
                "embedding": {"vector": {"initializer": {"name": "uniform", "scale": 0.5}}},
            },
        ]
    )
    plan = plan_of(field("t.hour", column="t"), field("t.day", column="t"), field("c"))
    ranges = [table.segments[1].initializer.scale for table in table_specs(config, plan)]
    assert ranges == [0.5, 0.5, 0.5]
    none = config_of("auto")
    assert [table.segments for table in table_specs(none, plan)] == [None] * 3


@given(st.integers(1, 2**31 - 1), st.integers(1, 1024))
def test_auto_is_the_fourth_root_of_the_number_of_ids(num_ids, full):
    dim = dimension_of(EmbeddingEntry(dimension="auto"), full, num_ids)
    assert 1 <= dim <= full
    assert dim == full or (dim - 1) ** 4 < num_ids <= dim**4


def test_dimensions_differ_by_table():
    config = config_of(
        [
            {"columns": ["a", "b", "c", "d"], **HASHED},
            {"columns": "b", "embedding": {"dimension": 3}},
            {"columns": "c", "embedding": {"dimension": "auto"}},
            {"columns": "d", "embedding": {"share": "b"}},
        ],
        model={"embedding_dim": 6},
    )
    plan = plan_of(field("a"), field("b"), field("c", num_ids=17), field("d", table="b"))
    assert [table.name for table in plan.tables] == ["a", "b", "c"]
    dims = [
        None if table.segments is None else table.segments[1].dim
        for table in table_specs(config, plan)
    ]
    assert dims == [None, 3, 3]
    assert field_dims(config, plan) == (6, 3, 3, 3)
    assert row_layout(config, plan).width == 7


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


@pytest.mark.slow
def test_a_run_with_embeddings_of_their_own_is_exported_and_shrinks_its_rows(tmp_path):
    """Rows of two sizes and optimizers: the export scores alike, and unused numbers stay zero."""
    write_feeds(tmp_path / "feeds.csv", 2500)
    vocabulary = {"id": {"vocabulary": {"min_count": 2}}}
    features = [
        {
            "columns": "item",
            **vocabulary,
            "embedding": {"dimension": 2, "vector": {**OWN["vector"], **GENTLE}},
        },
        {
            "columns": "clicked_items",
            **vocabulary,
            "sequence": {"max_length": 4},
            "embedding": {"share": "item"},
        },
        {
            "columns": "hour",
            "id": {"round_identity": {"num_buckets": 24}},
            "embedding": {"dimension": "auto", "linear": {"l2": {"strength": 0.5}}},
        },
    ]
    model = {"name": "deepfm", "embedding_dim": 4, "hidden_units": [8], "dropout": 0.0}
    folder = tmp_path / "run"
    settings = settings_of(tmp_path / "feeds.csv", folder, features, model=model)
    ctr_pipeline.run(settings)
    parity = json.loads((folder / "export/1/parity.json").read_text())
    assert max(parity["max_difference"].values()) <= parity["tolerance"]
    import tensorflow as tf

    variables = tf.train.load_checkpoint(str(folder / "export/1/variables/variables"))
    names = list(variables.get_variable_to_shape_map())
    (keys_name,) = [name for name in names if "row_keys/" in name and "VARIABLE_VALUE" in name]
    (values_name,) = [name for name in names if "row_values/" in name and "VARIABLE_VALUE" in name]
    tables = variables.get_tensor(keys_name)[:-1] >> 44
    values = variables.get_tensor(values_name)[:-1]
    for table, dim in ((0, 2), (1, 3)):
        rows = values[tables == table]
        assert len(rows) > 10
        assert rows[:, 1 : 1 + dim].all()
        np.testing.assert_array_equal(rows[:, 1 + dim :], 0)
