"""Whatever is rendered is what Kubernetes reads, from the oldest version supported to the newest."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import kubernetes_validate.utils
import pytest
import yaml
from tests.support import charts

OLDEST, NEWEST = "1.25", kubernetes_validate.utils.latest_version()
SETS = [None, *sorted(charts.VALUES.glob("*.yaml"))]
CUSTOM = yaml.safe_load((Path(__file__).parent / "custom-resources.yaml").read_text("utf-8"))


def name_of(values: Path | None) -> str:
    return values.stem if values else "defaults"


@pytest.fixture(autouse=True, scope="module")
def _schemas_are_read_once() -> Iterator[None]:
    """The library reads its definitions anew for each object: two megabytes, a hundred times."""
    with pytest.MonkeyPatch.context() as patch:
        cached = functools.cache(kubernetes_validate.utils.schema_contents)
        patch.setattr(kubernetes_validate.utils, "schema_contents", cached)
        yield


def check(found: dict[str, Any], version: str) -> None:
    kind = f"{found['apiVersion']}/{found['kind']}"
    if kind in CUSTOM:
        jsonschema_rs.validate(CUSTOM[kind], found)
    else:
        kubernetes_validate.utils.validate(found, version, strict=True)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("values", SETS, ids=name_of)
def test_every_object_fits_the_strict_schema_of_its_version(values: Path | None, version: str) -> None:
    """Unknown fields are refused: a misspelt one would be dropped by a cluster without a word."""
    objects = charts.rendered(values, "--kube-version", version)
    assert len(objects) > 10
    for found in objects:
        check(found, version)


def test_the_strict_schemas_do_refuse() -> None:
    """So that the test above can fail: a misspelt field, and a number where a text has to be."""
    for path, value in (("securityContex", {}), ("terminationGracePeriodSeconds", "40")):
        deployment = yaml.safe_load(yaml.safe_dump(charts.of_kind(charts.rendered(None), "Deployment")[0]))
        deployment["spec"]["template"]["spec"][path] = value
        with pytest.raises(kubernetes_validate.utils.ValidationError):
            check(deployment, NEWEST)


@pytest.mark.parametrize(
    ("values", "version"), [(None, OLDEST), (SETS[1], NEWEST), (SETS[-1], NEWEST)], ids=str
)
def test_helm_finds_nothing_to_warn_of(values: Path | None, version: str) -> None:
    """`--strict` fails on warnings, those of APIs that a version has deprecated among them."""
    told = ["--values", str(values)] if values else []
    command = ["lint", "--strict", "--with-subcharts", "--kube-version", version, *told, str(charts.CHART)]
    done = charts.run(charts.program("helm"), *command)
    told_of = {line.partition("]")[0] for line in done.stdout.splitlines() if line.startswith("[")}
    assert done.returncode == 0, done.stdout + done.stderr
    assert told_of <= {"[INFO"}
    assert "WARN" not in done.stderr


def test_the_chart_says_which_versions_it_is_for() -> None:
    assert (
        yaml.safe_load((charts.CHART / "Chart.yaml").read_text("utf-8"))["kubeVersion"] == f">={OLDEST}.0-0"
    )
    refused = charts.template("--kube-version", "1.24")
    assert refused.returncode != 0
    assert "kubeVersion" in refused.stderr
