"""Migrations: from nothing, again, two at once, by command; and the generated schema that shows what they make."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from alembic.script import ScriptDirectory
from tests.support.postgres import with_database

from autopilot.local import schema
from autopilot.local.pg_programs import pg_programs
from autopilot.local.ports import LOOPBACK, free_port
from autopilot.local.postgres import PostgresServer
from autopilot.storage import __main__ as storage_command
from autopilot.storage import invariants, migrate, queries
from autopilot.storage.database import Database
from autopilot.storage.errors import DatabaseUnavailable, SchemaBehind
from autopilot.storage.schema_version import require_ready, wanted

OLD_PROGRAMS = Path(os.environ.get("AUTOPILOT_PG_BIN_15", "/usr/lib/postgresql/15/bin"))

ORPHANED_OLD_EVENT = """
INSERT INTO run_event_outbox (event_id, workspace_id, autopilot_id, run_id, kind, payload, occurred_at)
VALUES (gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'run.done', '{}', '2026-01-01')
"""
STALE_EXECUTION = """
INSERT INTO sys_cron_executions (id, job_name, scope_kind, scope_id, plan_time, state, max_attempts, reentry, runner_id,
                                 lease_token, heartbeat_at, stale_at)
SELECT id, 'job', 'global', '', now(), 'RUNNING', 1, true, id, id, '2026-01-01', '2026-01-02' FROM gen_random_uuid() AS id
"""


async def command(url: str, *arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "autopilot.storage", *arguments,
        env={**os.environ, "AUTOPILOT_DATABASE_URL": url}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def fetchval(url: str, sql: str) -> object:
    conn = await asyncpg.connect(url)
    try:
        return await conn.fetchval(sql)
    finally:
        await conn.close()


async def test_an_empty_database_is_behind_until_it_is_migrated(empty_postgres_url: str) -> None:
    before = await migrate.status(empty_postgres_url)
    assert (before.current, before.ready) == (None, False)
    after = await migrate.upgrade(empty_postgres_url)
    assert (after.current, after.ready) == (after.head, True)
    assert await migrate.status(empty_postgres_url) == after


async def test_of_several_servers_the_one_that_answers_and_can_be_written_to_is_migrated(
    empty_postgres_url: str,
) -> None:
    server = urlsplit(empty_postgres_url)
    both = f"{LOOPBACK}:{free_port()},{server.hostname}:{server.port}"
    several = empty_postgres_url.replace(f"{server.hostname}:{server.port}", both)
    assert (await migrate.upgrade(several)).ready
    async with Database(several, name="test") as database:
        await require_ready(database)


async def test_migrating_again_changes_nothing(postgres_url: str) -> None:
    await fetchval(postgres_url, "INSERT INTO workspace_counter (workspace_id) VALUES (gen_random_uuid())")
    assert (await migrate.upgrade(postgres_url)).ready
    assert await fetchval(postgres_url, "SELECT count(*) FROM workspace_counter") == 1


async def test_of_two_migrators_at_once_one_migrates_and_the_other_waits(empty_postgres_url: str) -> None:
    done = await asyncio.gather(migrate.upgrade(empty_postgres_url), migrate.upgrade(empty_postgres_url))
    assert all(status.ready for status in done)


async def test_a_migrator_gives_up_when_the_other_holds_on(empty_postgres_url: str) -> None:
    holder = await asyncpg.connect(empty_postgres_url)
    await holder.fetchval("SELECT pg_advisory_lock($1)", migrate.MIGRATION_LOCK)
    with pytest.raises(migrate.MigrationBusy):
        await migrate.upgrade(empty_postgres_url, wait_s=0)
    await holder.close()
    assert (await migrate.upgrade(empty_postgres_url)).ready


async def test_a_database_that_is_newer_than_the_program_is_left_alone(postgres_url: str) -> None:
    """The older release keeps working, and its migrator does no harm, while the newer one rolls out."""
    await fetchval(postgres_url, "UPDATE schema_version SET version_num = '9999'")
    assert (await migrate.status(postgres_url)).ready
    assert (await migrate.upgrade(postgres_url)).current == "9999"


async def test_a_migration_that_fails_leaves_nothing_behind(empty_postgres_url: str) -> None:
    # The last table of the schema is in the way, so that everything before it was already made when the body fails.
    await fetchval(empty_postgres_url, "CREATE TABLE run_stats_hourly ()")
    with pytest.raises(Exception, match="already exists"):
        await migrate.upgrade(empty_postgres_url)
    assert (await migrate.status(empty_postgres_url)).current is None
    assert await fetchval(empty_postgres_url, "SELECT to_regclass('workspace')") is None


def test_revisions_are_one_line_forward() -> None:
    revisions = list(ScriptDirectory.from_config(migrate._config()).walk_revisions())
    assert [revision.revision for revision in reversed(revisions)] == [
        f"{number:04}" for number in range(1, len(revisions) + 1)
    ]
    assert not any(hasattr(revision.module, "downgrade") for revision in revisions)


async def test_the_command_migrates_and_tells_where_it_stands(empty_postgres_url: str) -> None:
    code, told, _ = await command(empty_postgres_url, "status")
    assert (code, told.startswith("schema empty, ")) == (1, True)
    code, told, err = await command(empty_postgres_url, "migrate")
    assert (code, err) == (0, "")
    status, check = await asyncio.gather(
        command(empty_postgres_url, "status"), command(empty_postgres_url, "check")
    )
    assert status == (0, told, "")
    assert check == (0, "all invariants hold\n", "")


def in_process(monkeypatch: pytest.MonkeyPatch, url: str, name: str) -> int:
    monkeypatch.setattr(sys, "argv", ["storage", "--database-url", url, name])
    return storage_command.main()


def test_the_check_command_fails_for_a_broken_rule_and_only_warns_for_a_late_one(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(fetchval(postgres_url, ORPHANED_OLD_EVENT))
    assert in_process(monkeypatch, postgres_url, "check") == 1
    said = capsys.readouterr().out
    assert "BROKEN event_has_its_run" in said
    assert "warning overdue_event" in said
    asyncio.run(fetchval(postgres_url, "DELETE FROM run_event_outbox"))
    asyncio.run(fetchval(postgres_url, STALE_EXECUTION))
    assert in_process(monkeypatch, postgres_url, "check") == 0
    assert "warning overdue_execution" in capsys.readouterr().out


@pytest.mark.parametrize("command_name", ["status", "check", "migrate"])
@pytest.mark.parametrize("where", ["no server", "no database", "no postgres url"])
def test_the_command_says_in_one_sentence_why_it_cannot(
    postgres_admin_url: str, where: str, command_name: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    url = {
        "no server": f"postgresql://nobody@127.0.0.1:{free_port()}/none",
        "no database": with_database(postgres_admin_url, "nothing-here"),
        "no postgres url": "mysql://127.0.0.1/none",
    }[where]
    assert in_process(monkeypatch, url, command_name) == 1
    said = capsys.readouterr().err
    assert (said.count("\n"), said[:10]) == (1, "autopilot:")


async def test_services_meet_an_unmigrated_database_as_schema_behind(empty_postgres_url: str) -> None:
    with pytest.raises(SchemaBehind):
        await invariants.check(empty_postgres_url)


async def test_status_of_a_server_that_is_away_is_unavailable() -> None:
    with pytest.raises(DatabaseUnavailable):
        await migrate.status(f"postgresql://nobody@127.0.0.1:{free_port()}/none")


def test_the_generated_schema_is_that_of_the_migrations(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AUTOPILOT_PG_BIN", raising=False)
    major = int(str(asyncio.run(fetchval(postgres_url, "SHOW server_version_num")))) // 10_000
    if major != pg_programs(None).major:
        pytest.skip(f"schema.sql is that of the wheel's Postgres, this server is {major}")
    changed = schema.difference(schema.schema_file().read_text("utf-8"), schema.dump(postgres_url))
    assert not changed, f"run python -m autopilot.local.schema\n{changed}"


async def test_readiness_wants_the_schema_that_the_program_knows(
    empty_postgres_url: str, postgres_url: str
) -> None:
    """S15, K84: a process that came before the migration waits for it, whatever the pool is."""
    async with Database(empty_postgres_url, name="test") as database:
        with pytest.raises(SchemaBehind):
            await require_ready(database)
    async with Database(postgres_url, name="test", pooler=True) as database:
        await require_ready(database)
        async with database.connection() as conn:
            await conn.execute("UPDATE schema_version SET version_num = '0000'")
        with pytest.raises(SchemaBehind, match="0000"):
            await require_ready(database)
    assert wanted() == (await migrate.status(postgres_url)).head


def test_a_difference_of_the_schema_is_shown() -> None:
    assert "+CREATE TABLE b ();" in schema.difference("CREATE TABLE a ();\n", "CREATE TABLE b ();\n")


@pytest.mark.skipif(not (OLD_PROGRAMS / "postgres").exists(), reason="no Postgres 15 (AUTOPILOT_PG_BIN_15)")
async def test_everything_works_on_the_oldest_supported_postgres(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOPILOT_PG_BIN", str(OLD_PROGRAMS))
    server = PostgresServer(tmp_path / "postgres", durable=False)
    try:
        server.start()
        assert str(await fetchval(server.url, "SHOW server_version")).startswith("15.")
        assert (await migrate.upgrade(server.url)).ready
        assert await invariants.check(server.url) == []
        async with Database(server.url, name="test") as database, database.connection() as conn:
            for aggregate in queries.aggregates():
                for sql in queries.load(aggregate).values():
                    await conn.prepare(sql)
    finally:
        server.destroy()
