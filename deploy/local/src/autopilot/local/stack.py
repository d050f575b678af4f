"""The whole system on one machine: Postgres, NATS, the schema, and any number of each service."""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from autopilot.local.errors import LocalError
from autopilot.local.nats import NatsServer
from autopilot.local.ports import LOOPBACK, free_port, require_free
from autopilot.local.postgres import PostgresServer
from autopilot.local.processes import Child, FolderLock
from autopilot.local.services import BY_NAME, KINDS, ServiceKind, ServiceProcess, ended
from autopilot.local.settings import FREE_PORTS, Ports, port_variable

MIGRATE_TIMEOUT_S = 180.0


class Stack:
    """Everything that runs, with its data in `folder`; a context manager that starts it and stops it in reverse.

    Without `database_url` it runs a Postgres of its own, without `nats_url` a NATS of its own unless `nats` is
    false, when the services are told of none. `replicas` says how many of a service to start (default one each;
    0 leaves it to `start_service`). `env` goes to every service. All methods block; call them from a thread when
    an event loop must go on.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nats: bool = True,
        replicas: Mapping[str, int] | None = None,
        env: Mapping[str, str] | None = None,
        ports: Ports = FREE_PORTS,
        database_url: str | None = None,
        nats_url: str | None = None,
        durable: bool = False,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.folder = folder.absolute()
        self.processes: dict[str, list[ServiceProcess]] = {kind.name: [] for kind in KINDS}
        self._replicas = {kind.name: 1 for kind in KINDS} | dict(replicas or {})
        self._extra_env = dict(env or {})
        self._ports = ports
        self._report = report
        self._lock = FolderLock(self.folder, "The stack")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(exist_ok=True)
        self.postgres = self._own_postgres(durable=durable)
        self.nats = NatsServer(self.folder / "nats", port=ports.nats, port_variable=port_variable("nats"))
        # A shell that sourced the stack's env file names our own servers: those are still ours to run.
        self._database_url = None if database_url == self.postgres.url else database_url
        self._nats_url = None if nats_url == self.nats.url else nats_url
        self._wants_nats = nats
        self._ingress_port = ports.ingress

    @property
    def logs(self) -> Path:
        return self.folder / "log"

    @property
    def database_url(self) -> str:
        return self._database_url or self.postgres.url

    @property
    def nats_url(self) -> str | None:
        if not self._wants_nats:
            return None
        return self._nats_url or self.nats.url

    @property
    def api_url(self) -> str:
        return self.processes["rules-api"][0].url

    @property
    def ingress_url(self) -> str:
        return f"http://{LOOPBACK}:{self._ingress_port}"

    @property
    def foreign_servers(self) -> tuple[str, ...]:
        """The servers that it uses without running them."""
        chosen = {"Postgres": self._database_url, "NATS": self._nats_url}
        return tuple(name for name, url in chosen.items() if url is not None)

    def start(self) -> None:
        """Start everything and wait until all of it is ready; LocalError says in one sentence why it is not."""
        self._lock.take()
        try:
            self.end_leftovers()
            for replicas in self.processes.values():
                replicas.clear()  # of a start before this one
            self._require_ports()
            # Chosen before anything starts: rules-api shows webhook URLs and starts before ingress does.
            self._ingress_port = self._ports.ingress or free_port()
            self._start_servers()
            self._report("Migrating the database")
            self.run_module("autopilot.storage", "migrate", timeout_s=MIGRATE_TIMEOUT_S)
            for kind in KINDS:
                for _ in range(self._replicas[kind.name]):
                    self._launch(kind, {})
            for process in self.all_processes():
                process.wait_ready()
                self._report(f"{process.name} is ready")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop in reverse: services (all told first, then waited for), NATS, Postgres."""
        running = list(self.all_processes())[::-1]
        for process in running:
            process.ask_to_end()
        for process in running:
            process.stop()
        self.nats.stop()
        self.postgres.stop()
        self._lock.release()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start_service(self, name: str, extra_env: Mapping[str, str] | None = None) -> ServiceProcess:
        """Start one more replica and wait until it is ready."""
        process = self._launch(BY_NAME[name], extra_env or {})
        process.wait_ready()
        return process

    def all_processes(self) -> Iterator[ServiceProcess]:
        for kind in KINDS:
            yield from self.processes[kind.name]

    def dead(self) -> str | None:
        """A sentence about a part that ended although nobody stopped it here; None when all run."""
        for process in self.all_processes():
            if (code := process.exit_code) is not None:
                return f"{process.name} {ended(code)}: {process.last_words()} (log: {process.log})"
        if "Postgres" not in self.foreign_servers and self.postgres.pid is None:
            return f"Postgres has ended (log: {self.postgres.log})"
        if self._wants_nats and "NATS" not in self.foreign_servers and self.nats.pid is None:
            return f"NATS has ended (log: {self.nats.log})"
        return None

    def environment(self) -> dict[str, str]:
        """What every service is told, on top of our own environment."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("AUTOPILOT_LOCAL_")}
        env |= {"AUTOPILOT_DATABASE_URL": self.database_url, "AUTOPILOT_NATS_URL": self.nats_url or ""}
        env["AUTOPILOT_INGRESS_URL"] = self.ingress_url
        env.setdefault("AUTOPILOT_SECRET_KEYS", self._secret_key())
        return env | self._extra_env

    def run_module(self, module: str, *arguments: str, timeout_s: float = 60.0) -> str:
        """Run one of the project's commands to its end and return what it printed."""
        command = [sys.executable, "-m", module, *arguments]
        try:
            done = subprocess.run(
                command, env=self.environment(), stdin=subprocess.DEVNULL, capture_output=True,
                text=True, timeout=timeout_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise LocalError(f"{module} {arguments[0]} did not end in {timeout_s:.0f} s.") from error
        if done.returncode != 0:
            lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
            raise LocalError(f"{module} {arguments[0]} failed: {lines[-1] if lines else 'it said nothing'}")
        return done.stdout

    def end_leftovers(self) -> bool:
        """End what a killed stack left running in this folder; whether there was anything."""
        found = False
        for place in (self.logs, self.folder / "nats"):
            for pid_file in place.glob("*.pid"):
                found = Child(pid_file.stem, [], place).end_leftover() or found
        return self.postgres.end_leftover() or found

    def _start_servers(self) -> None:
        if "Postgres" not in self.foreign_servers:
            self._report("Starting Postgres")
            self.postgres.start()
        if self._wants_nats and "NATS" not in self.foreign_servers:
            self._report("Starting NATS")
            self.nats.start()

    def _require_ports(self) -> None:
        """Refuse taken ports before anything has started."""
        health = range(self._ports.health, self._ports.health + sum(self._replicas.values()))
        wanted = [("api", self._ports.api, "the API"), ("ingress", self._ports.ingress, "webhooks")]
        wanted += [("health", port, "a service's health") for port in health if self._ports.health]
        for field, port, purpose in wanted:
            if port:
                require_free(port, purpose, port_variable(field))

    def _launch(self, kind: ServiceKind, extra_env: Mapping[str, str]) -> ServiceProcess:
        number = len(self.processes[kind.name])
        fixed = {"rules-api": self._ports.api, "ingress": self._ingress_port}.get(kind.name, 0)
        process = ServiceProcess(
            kind,
            number,
            self.logs,
            env=self.environment() | dict(extra_env),
            health_port=self._next_health_port(),
            http_port=fixed if fixed and number == 0 else free_port(),
        )
        self.processes[kind.name].append(process)
        process.start()
        return process

    def _next_health_port(self) -> int:
        if not self._ports.health:
            return free_port()
        return self._ports.health + sum(len(replicas) for replicas in self.processes.values())

    def _own_postgres(self, *, durable: bool) -> PostgresServer:
        return PostgresServer(
            self.folder / "postgres",
            port=self._ports.postgres,
            port_variable=port_variable("postgres"),
            durable=durable,
            password=self._kept("postgres.password", lambda: secrets.token_urlsafe(24)),
        )

    def _secret_key(self) -> str:
        return self._kept("secret.key", lambda: base64.urlsafe_b64encode(os.urandom(32)).decode())

    def _kept(self, name: str, make: Callable[[], str]) -> str:
        """A secret of this folder, made once and readable by its owner only."""
        path = self.folder / name
        with suppress(FileNotFoundError):
            return path.read_text()
        path.touch(mode=0o600)
        path.write_text(make())
        return path.read_text()
