"""MLflow's stores: the folder `mlruns` with a file for each number, and the SQLite file of newer versions.

Source: MLflow 3, mlflow/store/tracking/file_store.py (a line is time, value, step) and dbmodels/models.py.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from verizero.pipeline.diagnosis.logs.logged import Logged, LoggedRow, numbers
from verizero.pipeline.errors import RunError

SQLITE = b"SQLite format 3\x00"


def is_here(path: Path) -> bool:
    """True if the path is a store, an experiment or a run of MLflow."""
    return _database(path) is not None or _run_folder(path) is not None


def read(path: Path) -> Logged:
    """Return the numbers and parameters of the run that was written last."""
    logged = Logged()
    if (database := _database(path)) is not None:
        _read_database(database, logged)
    elif (run := _run_folder(path)) is not None:
        _read_folder(run, logged)
    return logged


def _database(path: Path) -> Path | None:
    for file in [path] if path.is_file() else [path / "mlflow.db", path / "mlruns.db"]:
        if file.is_file():
            with file.open("rb") as content:
                if content.read(len(SQLITE)) == SQLITE:
                    return file
    return None


def _run_folder(path: Path) -> Path | None:
    """Return the run's folder at or below the path that was changed last."""
    if not path.is_dir():
        return None
    runs = [m.parent for depth in ("", "*/", "*/*/", "*/*/*/") for m in path.glob(f"{depth}metrics") if m.is_dir()]
    runs = [r for r in runs if (r / "params").is_dir() or (r / "meta.yaml").is_file()]
    return max(runs, key=lambda r: (r / "metrics").stat().st_mtime, default=None)


def _read_folder(run: Path, logged: Logged) -> None:
    for file in sorted(f for f in (run / "metrics").rglob("*") if f.is_file()):
        name = file.relative_to(run / "metrics").as_posix()
        logged.files.append(str(file))
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            parts = line.split()
            if len(parts) >= 3 and parts[2].lstrip("-").isdecimal():
                logged.rows.append(LoggedRow(str(file), number, int(parts[2]), numbers({name: parts[1]})))
    for file in sorted(f for f in (run / "params").rglob("*") if f.is_file()):
        _add_setting(file.relative_to(run / "params").as_posix(), file.read_text(encoding="utf-8").strip(), logged)


def _read_database(file: Path, logged: Logged) -> None:
    logged.files.append(str(file))
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            last = database.execute("SELECT run_uuid FROM metrics ORDER BY timestamp DESC LIMIT 1").fetchone()
            if last is None:
                return
            rows = database.execute(
                "SELECT key, value, step FROM metrics WHERE run_uuid = ? AND is_nan = 0 ORDER BY step", last
            )
            for number, (name, value, step) in enumerate(rows, 1):
                logged.rows.append(LoggedRow(str(file), number, int(step), numbers({name: value})))
            for name, value in database.execute("SELECT key, value FROM params WHERE run_uuid = ?", last):
                _add_setting(name, value, logged)
    except sqlite3.Error as exc:
        raise RunError(f"{file} cannot be read as a store of MLflow ({exc}); copy it again") from exc


def _add_setting(name: str, text: str, logged: Logged) -> None:
    """Add a parameter, whose value MLflow keeps as text. verl joins the names on the way to an option by slashes."""
    value = numbers({"value": text}).get("value", {"True": True, "False": False, "None": None}.get(text, text))
    logged.settings[name.replace("/", ".")] = value
