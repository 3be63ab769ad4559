"""The doctor's look at a PostgreSQL or MySQL store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runners.doctor.check import NOT_APPLICABLE, OK, PROBLEM, WARNING, Check
from runners.doctor.schema import NAME, check_schema

if TYPE_CHECKING:
    from sqlalchemy import Connection

CROWDED = 0.8  # of the connections that a server allows
CONNECT_SECONDS = 5
_ANSWERS = "store answers"


def check_sql(address: str) -> list[Check]:
    """Rows about the server: does it let us in, whose tables, how many connections."""
    try:
        from sqlalchemy import create_engine
        from sqlalchemy.exc import SQLAlchemyError
        from sqlalchemy.pool import NullPool
    except ImportError:
        return [Check(_ANSWERS, NOT_APPLICABLE, "SQLAlchemy is not installed here")]
    try:
        engine = create_engine(
            address, poolclass=NullPool, connect_args=_limits(address)
        )
        with engine.connect() as connection:
            return _look(connection, address)
    except ImportError as error:
        advice = "install the package that holds that module"
        return [Check(_ANSWERS, PROBLEM, f"its driver is missing: {error}", advice)]
    except SQLAlchemyError as error:
        reason = " ".join(str(getattr(error, "orig", None) or error).split())
        advice = "see that the server runs, and that the address is right"
        return [Check(_ANSWERS, PROBLEM, reason, advice)]


def _look(connection: Connection, address: str) -> list[Check]:
    from sqlalchemy import inspect

    rows = [Check(_ANSWERS, OK, _banner(connection))]
    if inspect(connection).has_table("alembic_version"):
        rows.append(check_schema(_versions(connection), address))
    else:
        rows.append(Check(NAME, OK, "no tables yet; the first run makes them"))
    if connection.dialect.name == "postgresql":
        rows.append(_connections(connection))
    return rows


def _limits(address: str) -> dict[str, int]:
    # these two drivers share the word; others are ended by the doctor's own limit
    named = address.startswith(("postgresql://", "postgresql+psycopg"))
    return {"connect_timeout": CONNECT_SECONDS} if named else {}


def _banner(connection: Connection) -> str:
    dialect = connection.dialect
    numbers = (str(part) for part in dialect.server_version_info or ())
    return f"{dialect.name} {'.'.join(numbers)}"


def _versions(connection: Connection) -> list[str]:
    from sqlalchemy import text

    return list(connection.scalars(text("SELECT version_num FROM alembic_version")))


def _connections(connection: Connection) -> Check:
    from sqlalchemy import text

    used = connection.scalar(text("SELECT count(*) FROM pg_stat_activity"))
    most = int(connection.scalar(text("SHOW max_connections")))
    found = f"{used} of {most} in use"
    if used < CROWDED * most:
        return Check("connections", OK, found)
    advice = "fewer runs at once, an MLflow server before it, or a larger limit"
    return Check("connections", WARNING, found, advice)
