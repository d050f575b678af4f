"""What is made from other files agrees with them: settings, alerts, and the kustomize base."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.support import chart_files, charts


def test_made_files_are_up_to_date() -> None:
    """Settings, alerts and the base, each as it would be made now; `make charts` writes them."""
    made = chart_files.files()
    stale = [
        str(path.relative_to(charts.ROOT)) for path, text in made.items() if path.read_text("utf-8") != text
    ]
    assert stale == [], "run make charts"
    assert sorted(chart_files.BASE.iterdir()) == sorted(
        path for path in made if path.parent == chart_files.BASE
    )


def test_the_base_has_nothing_of_helm() -> None:
    for path in chart_files.BASE.glob("*.yaml"):
        assert "helm" not in path.read_text("utf-8").lower(), path.name


@pytest.mark.parametrize("folder", ["base", "example"])
def test_kustomize_builds_what_the_chart_renders(folder: str) -> None:
    """`kubectl apply -k` makes the same objects as `helm install`, moved and patched by the example."""
    done = charts.run(charts.program("kubectl"), "kustomize", str(chart_files.BASE.parent / folder))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    built = list(yaml.safe_load_all(done.stdout))
    rendered = chart_files.without_helm(list(charts.rendered(chart_files.BASE_VALUES)))

    def names(objects: list[charts.Object]) -> list[tuple[str, str]]:
        return sorted((found["kind"], found["metadata"]["name"]) for found in objects)

    assert names(built) == names(rendered)
    if folder == "base":
        by_name = {(found["kind"], found["metadata"]["name"]): found for found in rendered}
        for found in built:
            assert found == by_name[found["kind"], found["metadata"]["name"]]
    else:
        assert {found["metadata"]["namespace"] for found in built} == {"autopilot"}
        images = {c["image"] for _name, pod in charts.pods(tuple(built)) for c in pod["spec"]["containers"]}
        assert all(image.startswith("registry.example.com/autopilot-") for image in images)


def test_the_rule_of_alerts_holds_the_alerts() -> None:
    (rule,) = charts.of_kind(charts.rendered(charts.VALUES / "everything.yaml"), "PrometheusRule")
    assert rule["spec"] == yaml.safe_load(Path(chart_files.ALERTS).read_text("utf-8"))
    assert rule["spec"]["groups"]
