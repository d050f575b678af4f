"""Rules of security that no linter knows hold for all code that is shipped, and what is installed is pinned (S9.12)."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tests.support.code_rules import faults

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(
    path
    for folder in ("shared/src", "services")
    for path in ROOT.glob(f"{folder}/**/*.py")
    if "build" not in path.parts
)
SERVICES = ("autopilot-ingress", "autopilot-scheduler", "autopilot-dispatcher", "autopilot-rules-api")
PERMISSIVE = re.compile(
    r"\b(MIT|Apache|BSD|ISC|PSF|Python Software Foundation|MPL|0BSD|Unlicense|Zlib)\b", re.IGNORECASE
)

BROKEN = {
    "storage/x.py": [
        'conn.fetch(f"SELECT {column} FROM run")',
        'conn.fetch("SELECT * FROM " + table)',
        'conn.execute("DELETE FROM %s" % table)',
        "conn.fetchval(text)",
        "conn.fetch(SQL[name])",
    ],
    "engine/x.py": [
        'log.info(f"took {token}")',
        'log.warning("took", key=settings.key.reveal())',
        "key = config.secret_keys.reveal()",
        'ValueError(f"cannot use {dsn.reveal()}")',
        "assert signature == wanted",
        "ok = self.token_hash != given",
        "aiohttp.TCPConnector(ssl=False)",
        "httpx.get(url, verify=False)",
        "subprocess.run(command, shell=True)",
        "asyncio.create_subprocess_shell(command)",
        "os.system(command)",
        "context.verify_mode = ssl.CERT_NONE",
        "import pickle",
        "eval(expression)",
        "run(path)  # noqa: S603",
        "run(path)  # noqa",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("path", "line"), [(path, line) for path, lines in BROKEN.items() for line in lines])
def test_a_rule_finds_what_breaks_it(path: str, line: str) -> None:
    assert faults(f"autopilot/{path}", line)


@pytest.mark.parametrize(
    "line",
    [
        'conn.fetch(SQL["due"], now)',
        'conn.fetchval("SELECT 1")',
        'log.info("run_started", run_id=run.id)',
        "hmac.compare_digest(signature, wanted)",
        "assert task.lease_token == lease",
        "run(path)  # noqa: S603 - our own program",
    ],
)
def test_a_rule_lets_pass_what_keeps_it(line: str) -> None:
    assert not faults("autopilot/storage/x.py", line)


def test_all_shipped_code_keeps_the_rules() -> None:
    assert len(SHIPPED) > 100
    found = {
        str(path.relative_to(ROOT)): broken
        for path in SHIPPED
        if (broken := faults(str(path), path.read_text()))
    }
    assert not found


def test_everything_installed_is_pinned_by_version_and_hash() -> None:
    entries = re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text().replace("\\\n", " ").strip())
    assert len(entries) > 50
    for entry in entries:
        assert re.match(r"[A-Za-z0-9._\[\],-]+==\S+ ", entry), entry[:80]
        assert "--hash=sha256:" in entry, entry[:80]
        assert "://" not in entry, f"from its index alone: {entry[:80]}"


def shipped_packages() -> dict[str, metadata.Distribution]:
    """Everything that a service needs to run, by name."""
    found: dict[str, metadata.Distribution] = {}
    wanted = list(SERVICES)
    while wanted:
        name = re.sub(r"[-_.]+", "-", wanted.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # of another system or an extra that nobody asked for
        needed = map(Requirement, found[name].requires or [])
        wanted += [each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


def licence(package: metadata.Distribution) -> str:
    told = package.metadata.json
    classified = [each for each in told.get("classifier", []) if each.startswith("License ::")]
    return " ".join([str(told.get("license_expression", "")), *classified, str(told.get("license", ""))[:60]])


def test_every_package_that_is_shipped_may_be_given_on() -> None:
    packages = shipped_packages()
    assert len(packages) > 20
    refused = {
        name: licence(package)
        for name, package in packages.items()
        if not PERMISSIVE.search(licence(package))
    }
    assert not refused
