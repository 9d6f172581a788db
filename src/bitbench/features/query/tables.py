"""The tables that `bitbench query` offers: those of studies and that of kernel benches, in DuckDB's words."""

from bitbench.records import tables
from bitbench.records.tables import StudyTable, TableColumn

# How DuckDB spells the types of columns.
_TYPES = {
    "string": "VARCHAR",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "float64": "DOUBLE",
    "bool": "BOOLEAN",
    "timestamp": "TIMESTAMP",
    "list<string>": "VARCHAR[]",
    "list<float64>": "DOUBLE[]",
    "map<string, int32>": "MAP(VARCHAR, INTEGER)",
}
# What is not simply the value at a column's path.
_SQL = {
    "host.accelerators.name": "[accelerator.name for accelerator in host.accelerators]",
    "purpose": "coalesce(purpose, 'selection')",
}


def sql_type(column: TableColumn) -> str:
    return _TYPES[column.arrow_type]


def sql_value(column: TableColumn) -> str:
    """Return the value of a column, from the columns of its source."""
    value = _SQL.get(column.path) or ".".join(f'"{part}"' for part in column.path.split("."))
    if column.arrow_type == "timestamp":
        value = f"try_cast({value} AS TIMESTAMPTZ) AT TIME ZONE 'UTC'"
    return f'CAST({value} AS {sql_type(column)}) AS "{column.name}"'


def no_rows(name: str) -> str:
    """Return no row of the right types, as SQL: what is united with it has every column."""
    empty = ", ".join(f'CAST(NULL AS {sql_type(column)}) AS "{column.name}"' for column in TABLES[name].columns)
    return f"SELECT {empty} WHERE false"


def _column(name: str, kind: str, meaning: str) -> TableColumn:
    return TableColumn(name, kind, meaning, name)


KERNELS = StudyTable(
    "one row per kernel case, shape and batch of `bitbench kernels`, or of an imported kernel table",
    "records.json",
    (
        _column("folder", "string", "the folder that `bitbench kernels` or `bitbench import` filled"),
        _column("case", "string", "name of the kernel case; of an imported table, its column"),
        _column("in_features", "int32", "rows of the weight that are read"),
        _column("out_features", "int32", "columns of the result"),
        _column("batch", "int32", "activation rows"),
        _column("labels", "map<string, int32>", "further parameters, such as main_centroids"),
        _column("weight_bytes", "int64", "as stored"),
        _column("median_s", "float64", "median over rounds; of an imported table, the time that it prints"),
        _column("rounds", "int64", "how many"),
        _column("error", "float64", "relative error against double precision"),
        _column("cause", "string", "why it was not timed"),
        _column("device", "string", "where the kernels ran: cpu or cuda"),
        _column("device_name", "string", "of a GPU"),
        _column("cpu_model", "string", "processor"),
        _column("threads", "int32", "threads that it used"),
        _column("torch", "string", "version of torch"),
        _column("isa", "string", "instruction set that a native kernel ran on"),
        _column("imported_from", "string", "tool, where bitbench did not measure it"),
    ),
)
TABLES = {**tables.TABLES, "kernels": KERNELS}
