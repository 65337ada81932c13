"""What users get wrong about tables that belong to no run."""

from tests.mistakes.spoiled_world import Case, World, file, lines, nothing

DRIFT = ("drift", "rows.csv", "new.csv")


def _other_columns(world: World) -> None:
    world.write("new.csv", "colour,size\nred,1\n")


def _all_rows_bad(world: World) -> None:
    world.rows([f"{row},extra" for row in lines()], "new.csv")


def _folder_of_none(world: World) -> None:
    world.write("run/config.resolved.yaml", "data: {train: rows.csv, label: click}\noutput: run\n")
    world.rows(lines(), "new.csv")


APP_MISTAKES = (
    Case("profile_of_a_folder", nothing, ("is a folder", "glob"), ("profile", ".")),
    Case("profile_of_no_match", nothing, ("no file matches 'x*.csv'",), ("profile", "x*.csv")),
    Case("profile_empty", file("e.csv", ""), ("e.csv", "is empty"), ("profile", "e.csv")),
    Case(
        "profile_not_parquet",
        file("e.parquet", "PAR"),
        ("e.parquet", "is not a Parquet file"),
        ("profile", "e.parquet"),
        unset="the file has no rows",
    ),
    Case(
        "profile_label_of_texts",
        nothing,
        ("rows.csv, column 'city'", "a label is 0 or 1"),
        ("profile", "rows.csv", "--label", "city"),
    ),
    Case(
        "profile_label_alone",
        file("e.csv", "click\n0\n1\n"),
        ("e.csv",),
        ("profile", "e.csv", "--label", "click"),
        unset="there is one column",
    ),
    Case(
        "profile_into_nowhere",
        nothing,
        ("gone/p.html", "its folder does not exist"),
        ("profile", "rows.csv", "--output", "gone/p.html"),
    ),
    Case(
        "profile_into_a_folder",
        nothing,
        (": is a folder",),
        ("profile", "rows.csv", "--output", "."),
    ),
    Case("drift_of_nothing", nothing, ("no such file: 'new.csv'", "NEW"), DRIFT),
    Case("drift_of_another_table", _other_columns, ("new.csv", "none of the columns"), DRIFT),
    Case(
        "drift_of_bad_rows",
        _all_rows_bad,
        ("new.csv",),
        DRIFT,
    ),
    Case(
        "drift_from_a_run_without_rows",
        _folder_of_none,
        ("run", "holds no training rows", "ctrpipe analyze"),
        ("drift", "run", "new.csv"),
        followed=True,
    ),
    Case(
        "drift_from_a_broken_config",
        lambda world: world.write("c.yaml", "data: ["),
        ("c.yaml:1",),
        ("drift", "c.yaml", "rows.csv"),
    ),
)

COMMAND_MISTAKES = (
    Case(
        "profile_of_nothing", nothing, ("no such file: 'gone.csv'", "DATA"), ("profile", "gone.csv")
    ),
    Case(
        "profile_label_misspelt",
        nothing,
        ("rows.csv", "no column 'clik', which --label names", "Did you mean 'click'"),
        ("profile", "rows.csv", "--label", "clik"),
    ),
    Case(
        "profile_columns_backwards",
        nothing,
        ("--columns", "I9..I1"),
        ("profile", "rows.csv", "--columns", "I9..I1"),
    ),
    Case("drift_from_nothing", nothing, ("'old.csv'", "OLD"), ("drift", "old.csv", "rows.csv")),
    Case(
        "drift_threshold_below_0",
        nothing,
        ("--fail-above", "it should be greater"),
        (*DRIFT, "--fail-above", "-1"),
    ),
    Case(
        "drift_into_nowhere",
        nothing,
        ("gone/d.html", "its folder does not exist"),
        ("drift", "rows.csv", "rows.csv", "--html", "gone/d.html"),
    ),
)
