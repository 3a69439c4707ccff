"""Check what deploy/ has for Kubernetes: `make test-kubernetes`.

Helm's own engine renders the chart with several sets of values. What comes out, the other manifests, and the Pods of
the launcher (JSON on standard input, with the argument `-`) must fit the schemas of Kubernetes, without fields that
these lack. deploy/kubernetes/marless.yaml must be what the chart makes; `--write` writes it.

It runs in an environment of its own, because the package with the schemas has 17,000 files, and Helm's 75 MB.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

import helm_python
import yaml
from kubernetes_validate import SchemaNotFoundError, ValidationError, utils, validate

OLDEST = "1.29"
"""The first version that is checked, as are all later ones that the package knows."""
DEPLOY = Path(__file__).parents[1] / "deploy"
CHART, MANIFESTS = DEPLOY / "helm" / "marless", DEPLOY / "kubernetes"
RENDERED = MANIFESTS / "marless.yaml"
HEAD = "# Made from ../helm/marless by `make manifests`; not to be edited. docs/deploying.md#kubernetes\n"
VALUES = {
    "default": {},
    "launcher": {"launcher": {"enabled": True, "learners": {"workers": 2, "options": "gpus=1,memory=16g"}}},
    "elsewhere": {
        "images": {
            "registry": "registry.test/team/",
            "tag": "1.0",
            "pullPolicy": "Always",
            "pullSecrets": ["registry"],
        },
        "storage": {"class": "fast"},
        "services": {"nodeSelector": {"pool": "services"}, "tolerations": [{"key": "a", "operator": "Exists"}]},
        "user": None,
    },
    "gpus": {"workers": {"learners": {"gpus": 2, "runtimeClass": "nvidia"}, "actors": {"replicas": None}}},
    "operators": {
        "credentials": {"certManager": {"enabled": True}},
        "launcher": {"enabled": True},
        "metrics": {"enabled": True, "serviceMonitor": True},
    },
    "keda": {"keda": {"enabled": True}, "metrics": {"enabled": True}},
    "ray": {"pools": {"actors": "ray,address=ray://head:10001"}, "network": {"policies": False}},
}
REFUSED = {"images": {"tags": "1.0"}}
"""Values that no chart has: a mistake must be told, and not be passed over."""
NOT_OF_KUBERNETES = ("cert-manager.io/", "keda.sh/", "monitoring.coreos.com/")
"""Groups of kinds that operators bring, of which there is no schema here."""


def main() -> int:
    """Print what does not fit, and for which versions; 0 if everything fits."""
    made = HEAD + rendered({"namespace": {"create": True}})
    if "--write" in sys.argv:
        RENDERED.write_text(made, "utf-8")
    errors = (
        [] if RENDERED.read_text("utf-8") == made else [f"{RENDERED.name} is not what the chart makes: make manifests"]
    )
    errors += chart_errors()
    documents = {f"values {name}": rendered(values) for name, values in VALUES.items()}
    documents |= {each.name: each.read_text("utf-8") for each in MANIFESTS.glob("*.yaml")}
    items = [item for text in documents.values() for item in yaml.safe_load_all(text) if item]
    items += json.load(sys.stdin) if "-" in sys.argv else []
    versions = known_versions()
    errors += [f"{sentence} (Kubernetes {', '.join(found)})" for sentence, found in unfit_for(items, versions).items()]
    for sentence in errors:
        sys.stdout.write(f"{sentence}\n")
    sys.stdout.write(f"{len(items)} objects, Kubernetes {versions[0]} to {versions[-1]}: {len(errors)} errors\n")
    return 1 if errors or not items else 0


def rendered(values: dict) -> str:
    """What `helm template marless deploy/helm/marless --namespace marless` prints with these values."""
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(values, name="marless", namespace="marless")
    return "".join(
        f"---\n{text.strip().removeprefix('---').strip()}\n" for _, text in sorted(files.items()) if text.strip()
    )


def chart_errors() -> list[str]:
    """What Helm's linter says, and values that the chart's schema should refuse and does not."""
    found = [str(each) for each in helm_python.lint(CHART)["messages"] if each["severity"] > 1]
    try:
        with helm_python.Chart.load(CHART) as chart:
            chart.validate_schema(REFUSED)
    except helm_python.HelmError:
        return found
    return [*found, f"values.schema.json takes {REFUSED}"]


def known_versions() -> list[str]:
    """The versions whose schemas are checked."""
    known = list(dict.fromkeys(map(utils.major_minor, utils.all_versions())))
    return known[known.index(OLDEST) :]


def unfit_for(items: list[dict], versions: list[str]) -> dict[str, list[str]]:
    """What does not fit → versions."""
    wrong = defaultdict(list)
    for version in versions:
        for item in items:
            if not item["apiVersion"].startswith(NOT_OF_KUBERNETES) and (sentence := unfit(item, version)):
                wrong[sentence].append(version)
    return wrong


def unfit(item: dict, version: str) -> str:
    """Why an object does not fit the schemas of this version; "" if it does."""
    where = f"{item.get('kind')} {item.get('metadata', {}).get('name')}"
    try:
        validate(item, version, strict=True)
    except ValidationError as error:
        return f"{where}: {'.'.join(map(str, error.path))}: {error.message}"
    except SchemaNotFoundError:
        return f"{where}: there is no such kind in {item.get('apiVersion')}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
