"""What the driver raises, as errors of ours: retry later, retry now, or a broken rule by its name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from autopilot.domain.errors import AutopilotError, InfrastructureError, InvalidValue


class DatabaseUnavailable(InfrastructureError):
    """The database cannot be reached or refuses work for now."""


class Contention(InfrastructureError):
    """The transaction lost against another one (deadlock, lock timeout, serialization); doing it again may succeed."""


class SchemaBehind(InfrastructureError):
    """The database's schema is older than this program; run `python -m autopilot.storage migrate`."""


class ConstraintViolated(AutopilotError):
    """A named constraint refused the write."""

    def __init__(self, constraint: str) -> None:
        self.constraint = constraint
        super().__init__(f"the database refused the write: {constraint}")


_UNAVAILABLE = (
    asyncpg.PostgresConnectionError,  # 08xxx
    asyncpg.InsufficientResourcesError,  # 53xxx
    asyncpg.AdminShutdownError,  # 57P01
    asyncpg.CrashShutdownError,  # 57P02
    asyncpg.CannotConnectNowError,  # 57P03
    asyncpg.DatabaseDroppedError,  # 57P04
    asyncpg.InvalidCatalogNameError,  # 3D000
    asyncpg.InvalidAuthorizationSpecificationError,  # 28xxx: a password that was changed here and not yet there
    asyncpg.IdleInTransactionSessionTimeoutError,  # 25P03
    asyncpg.ReadOnlySQLTransactionError,  # 25006: a failed-over primary
    asyncpg.TargetServerAttributeNotMatched,
    OSError,
    asyncio.TimeoutError,
)
_CONTENTION = (
    asyncpg.DeadlockDetectedError,  # 40P01
    asyncpg.SerializationError,  # 40001
    asyncpg.LockNotAvailableError,  # 55P03
    asyncpg.QueryCanceledError,  # 57014
    asyncpg.InvalidCachedStatementError,  # the schema changed under a prepared statement
)


@contextmanager
def translated() -> Iterator[None]:
    """Raise driver errors as DatabaseUnavailable, Contention, SchemaBehind or ConstraintViolated (InvalidValue for a bad URL); bugs pass."""
    try:
        yield
    except asyncpg.IntegrityConstraintViolationError as error:
        raise ConstraintViolated(error.constraint_name or error.sqlstate or "unknown") from error
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
        raise SchemaBehind(
            f"the database's schema does not fit this program ({error.args[0]}); migrate it"
        ) from error
    except _CONTENTION as error:
        raise Contention(f"{type(error).__name__}: {error}") from error
    except asyncpg.ClientConfigurationError as error:
        raise InvalidValue("database_url", f"the database URL cannot be used ({error.args[0]})") from error
    except asyncpg.InterfaceError as error:
        # The driver says with one class that a connection is gone and that it was misused; only the first is the weather.
        if "clos" not in str(error) and "released" not in str(error):
            raise
        raise DatabaseUnavailable(f"the database connection is gone ({error})") from error
    except _UNAVAILABLE as error:
        raise DatabaseUnavailable(f"the database is unavailable ({type(error).__name__}: {error})") from error
