"""Mistakes in transforms."""

from tests.mistakes.spoiled_world import Case, entries, entry

CITY = {"columns": "city", "id": "vocabulary"}

CONFIG_MISTAKES = (
    Case(
        "entries_that_contradict_each_other",
        lambda w: w.config(
            features=[
                {"columns": ["price", "city"], "number": "count_encode"},
                {"columns": "city", "sequence": {}, "id": "vocabulary"},
            ]
        ),
        ("features[1]", "'city', together with features[0]", "null takes an earlier"),
    ),
    Case(
        "auto_misspelt",
        lambda w: w.config(features=["atuo", {"columns": "city", "id": "vocabulary"}]),
        ("features[0]", "an entry such as", "'atuo'"),
    ),
    Case(
        "format_of_names",
        entry(columns="city", id={"datetime": {"parts": ["hour"], "format": "%a %d %b %Y"}}),
        ("features[0].id", "has %a", "%Y, %y, %m, %b, %d"),
    ),
    Case(
        "part_unknown",
        entry(columns="city", id={"datetime": {"parts": ["century"]}}),
        ("features[0].id", "century"),
    ),
    Case(
        "age_at_no_date",
        entry(columns="city", number={"age": {"at": "yesterday"}}),
        ("'yesterday' is no date", "2024-06-01"),
    ),
    Case(
        "age_after_a_transform",
        entry(columns="city", number=["count_encode", "age"]),
        ("features[0].number", "age takes the text of the column"),
    ),
    Case(
        "boundaries_equal",
        entry(columns="price", id={"bucketize": {"boundaries": [1, 5, 5]}}),
        ("c.yaml", "features[0].id", "strictly increasing", "5 follows 5"),
    ),
    Case(
        "boundary_nan",
        entry(columns="price", id={"bucketize": {"boundaries": [1.0, float("nan"), 2.0]}}),
        ("features[0].id", "boundaries[1] is NaN"),
    ),
    Case(
        "boundary_nan_alone",
        entry(columns="price", id={"bucketize": {"boundaries": [float("nan")]}}),
        ("boundaries[0] is NaN",),
    ),
    Case(
        "one_interval",
        entry(columns="price", id={"bucketize": {"equal_width": 1}}),
        ("equal_width", "2"),
    ),
    Case(
        "equal_width_and_quantiles",
        entry(columns="price", id={"bucketize": {"equal_width": 4, "quantiles": 4}}),
        ("exactly one of boundaries, quantiles, equal_width and ln2",),
    ),
    Case(
        "target_encode_a_number",
        entry(columns="price", number=["log", "target_encode"]),
        ("target_encode takes the text of the column", "log gives a number"),
    ),
    Case(
        "target_encode_as_id",
        entry(columns="city", id="target_encode"),
        ("features[0].id", "must end in a transform that makes an id"),
    ),
    Case(
        "target_encode_both_ways",
        entry(columns="city", number={"target_encode": {"folds": 3, "order": "time"}}),
        ("takes folds or order, not both",),
    ),
    Case(
        "target_encode_one_fold",
        entry(columns="city", number={"target_encode": {"folds": 1}}),
        ("folds", "2"),
    ),
    Case(
        "target_encode_unsmoothed",
        entry(columns="city", number={"target_encode": {"smoothing": 0}}),
        ("smoothing", "expected more than 0.0"),
    ),
    Case(
        "target_encode_by_another_order",
        entry(columns="city", number={"target_encode": {"order": "random"}}),
        ("order", "time"),
    ),
    Case(
        "count_never",
        entry(columns="city", number={"count_encode": {"min_count": 0}}),
        ("min_count", "1"),
    ),
    Case(
        "count_after_a_vocabulary",
        entry(columns="city", id=["vocabulary", "count_encode"]),
        ("nothing can follow it; count_encode does",),
    ),
    Case(
        "share_nothing",
        entry(columns="city", id="vocabulary", embedding={}),
        ("features[0].embedding", "says nothing"),
    ),
    Case(
        "embedding_dimension_0",
        entry(**CITY, embedding={"dimension": 0}),
        ("features[0].embedding.dimension", "whole number from 1 to 1024, or auto, found 0"),
    ),
    Case(
        "embedding_dimension_a_word",
        entry(**CITY, embedding={"dimension": "automatic"}),
        ("features[0].embedding.dimension", "or auto, found 'automatic'"),
    ),
    Case(
        "embedding_optimizer_unknown",
        entry(**CITY, embedding={"vector": {"optimizer": {"name": "adm", "learning_rate": 1.0}}}),
        ("features[0].embedding.vector.optimizer.name", "adam"),
    ),
    Case(
        "embedding_l2_negative",
        entry(**CITY, embedding={"linear": {"l2": {"strength": -1}}}),
        ("features[0].embedding.linear.l2.strength", "at least 0"),
    ),
    Case(
        "embedding_option_of_train",
        entry(**CITY, embedding={"linear": {"learning_rate": 0.1}}),
        ("features[0].embedding.linear", "learning_rate", "unknown key"),
    ),
    Case(
        "share_misspelled",
        entry(columns="city", id="vocabulary", embedding={"shared": "city"}),
        ("features[0].embedding", "unknown key", "share"),
    ),
)

ROW_MISTAKES = (
    Case(
        "all_columns_taken_out",
        lambda w: w.config(features=["auto", {"columns": "*", "number": None, "id": None}]),
        ("features", "no column can serve as a feature"),
    ),
    Case(
        "dates_that_are_none",
        entry(columns="city", id={"datetime": {"parts": ["hour"]}}),
        ("features", "'city'", "tells a time in the format 'iso'", "epoch_seconds"),
    ),
    Case(
        "dates_of_another_format",
        entry(columns="user", number={"age": {"at": "2024-01-01", "format": "%d.%m.%Y"}}),
        ("'user'", "the format '%d.%m.%Y'", "another `format`"),
    ),
    Case(
        "age_of_no_dates",
        entry(columns="city", number=["age", "standardize"]),
        ("features", "'city'", "tells a time in the format 'iso'"),
    ),
    Case(
        "boundary_infinite",
        entry(columns="price", id={"bucketize": {"boundaries": [0.0, float("inf")]}}),
        ("price", "boundary inf", "finite"),
    ),
    Case(
        "vocabulary_empty",
        entry(columns="city", id={"vocabulary": {"min_count": 1000}}),
        ("features[0]", "'city'", "1000 times", "vocabulary is empty", "lower min_count"),
    ),
    Case(
        "target_encode_infinitely_smoothed",
        entry(columns="city", number={"target_encode": {"smoothing": float("inf")}}),
        ("city", "smoothing inf", "finite"),
    ),
    Case(
        "share_of_an_unknown_table",
        entries(CITY, {"columns": "user", "id": "vocabulary", "embedding": {"share": "citty"}}),
        ("c.yaml", "features[1].embedding.share", "no other feature", "'citty'", "city"),
    ),
    Case(
        "share_of_nobody",
        entry(columns="city", id="vocabulary", embedding={"share": "places"}),
        ("features[0].embedding.share", "no other feature has a table 'places'"),
    ),
    Case(
        "share_of_another_vocabulary",
        entries(
            CITY,
            {
                "columns": "user",
                "id": {"vocabulary": {"min_count": 1}},
                "embedding": {"share": "city"},
            },
        ),
        ("features[1].embedding.share", "its `id` is not that of 'city'", "same options"),
    ),
    Case(
        "share_of_another_hash",
        entries(
            {"columns": "city", "id": {"hash": {"buckets": 10}}},
            {
                "columns": "user",
                "sequence": {},
                "id": {"hash": {"buckets": 20}},
                "embedding": {"share": "city"},
            },
        ),
        ("features[1].embedding.share", "its `id` is not that of 'city'"),
    ),
    Case(
        "share_with_a_cross",
        entries(
            {"columns": "city", "id": {"hash": {"buckets": 10}}},
            {
                "cross": ["city", "user"],
                "id": {"hash": {"buckets": 10}},
                "embedding": {"share": "city"},
            },
        ),
        ("features[1].embedding.share", "'city × user' is a cross and 'city' is not"),
    ),
    Case(
        "share_of_quantiles",
        entries(
            {"columns": ["price", "user"], "id": {"bucketize": {"quantiles": 4}}}
            | {"embedding": {"share": "amounts"}},
        ),
        ("features[0].embedding.share", "'bucketize' is fitted to each column"),
    ),
    Case(
        "share_of_an_automatic_feature",
        entries(
            {"columns": "city"},
            {"columns": "user", "id": "vocabulary", "embedding": {"share": "city"}},
        ),
        ("features[1].embedding.share", "'city' are chosen by the statistics", "same `id`"),
    ),
    Case(
        "share_without_an_id",
        entry(columns="price", number="log", embedding={"share": "city"}),
        ("features[0].embedding.share", "a table is shared by ids", "give an `id`"),
    ),
    Case(
        "embedding_of_a_number",
        entry(
            columns="price",
            number="log",
            embedding={"vector": {"initializer": {"name": "uniform", "scale": 0.1}}},
        ),
        ("features[0].embedding", "'price' has no `id`, and so no embedding"),
    ),
    Case(
        "embedding_of_a_table_said_twice",
        entries(
            CITY | {"embedding": {"vector": {"initializer": {"name": "uniform", "scale": 0.1}}}},
            {
                "columns": "user",
                "id": "vocabulary",
                "embedding": {
                    "share": "city",
                    "vector": {"initializer": {"name": "uniform", "scale": 0.2}},
                },
            },
        ),
        ("features[1].embedding.vector", "is not what 'city' says", "say it once"),
    ),
    Case(
        "embedding_dimension_above_that_of_the_model",
        entry(**CITY, embedding={"dimension": 1000}),
        ("features[0].embedding.dimension", "1000 is more than model.embedding_dim"),
    ),
    Case(
        "embedding_dimension_of_din",
        lambda world: world.config(
            features=[
                CITY,
                {
                    "columns": "user",
                    "sequence": {},
                    "id": "vocabulary",
                    "embedding": {"share": "city", "dimension": "auto"},
                },
            ],
            model={"name": "din", "target": "city"},
        ),
        ("features[1].embedding.dimension", "din compares elements with a target", "leave this"),
    ),
    Case(
        "embedding_dimensions_of_one_table",
        entries(
            CITY | {"embedding": {"dimension": 2}},
            {
                "columns": "user",
                "id": "vocabulary",
                "embedding": {"share": "city", "dimension": "auto"},
            },
        ),
        ("features[1].embedding.dimension", "is not what 'city' says", "the table 'city'"),
    ),
)
