"""Check that deploy/kubernetes/ fits the schemas of Kubernetes, without fields that these lack: `make test-kubernetes`.

It runs in an environment of its own, because the package with the schemas has 17,000 files.
"""

import sys
from collections import defaultdict
from pathlib import Path

import yaml
from kubernetes_validate import SchemaNotFoundError, ValidationError, utils, validate

OLDEST = "1.29"
"""The first version that is checked, as are all later ones that the package knows."""
MANIFESTS = Path(__file__).parents[1] / "deploy" / "kubernetes"


def main() -> int:
    """Print what does not fit, and for which versions; 0 if everything fits."""
    known = list(dict.fromkeys(map(utils.major_minor, utils.all_versions())))
    versions = known[known.index(OLDEST) :]
    documents = [each for file in MANIFESTS.glob("*.yaml") for each in yaml.safe_load_all(file.read_text("utf-8"))]
    items = [item for document in documents for item in document.get("items", [document])]
    wrong = defaultdict(list)
    for version in versions:
        for sentence in filter(None, (unfit(item, version) for item in items)):
            wrong[sentence].append(version)
    for sentence, found in wrong.items():
        sys.stdout.write(f"{sentence} (Kubernetes {', '.join(found)})\n")
    sys.stdout.write(f"{len(items)} objects, Kubernetes {versions[0]} to {versions[-1]}: {len(wrong)} errors\n")
    return 1 if wrong or not items else 0


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
