"""`python -m tests.plugins.kubernetes` prints Pods and Secrets of the launcher, for `make test-kubernetes`."""

import json
import sys

from marless.fleet.launchers.base import LaunchOrder, WorkerProgram
from marless_kubernetes import manifests, settings
from marless_kubernetes.manifests import PodOwner

OWNER = PodOwner("0123abcd", "{}", {"apiVersion": "v1", "kind": "Pod", "name": "learner-pool-0", "uid": "u"})
OPTIONS = (
    {"image": "workers"},
    {
        **{
            "image": "registry.test/workers:1",
            "pull": "missing",
            "pull_secret": "registry",
            "service_account": "workers",
        },
        **{"credentials": "marless-learner-worker", "tls_secret": "made", "gpus": "1", "resources": "example.com/ib:1"},
        **{"node_selector": "zone:a", "tolerations": "nvidia.com/gpu:NoSchedule;a=b", "labels": "team:marl"},
        **{"priority_class": "low", "runtime_class": "nvidia"},
    },
)


def main() -> None:
    """Print them as a list."""
    program = WorkerProgram("marless.services.learner_pool.worker", (), {}, lambda: "", {"OMP_NUM_THREADS": "2"})
    made = [manifests.secret("marless-0", "uid", "line", OWNER.labels("one", "learner"))]
    for options in OPTIONS:
        read = settings.read(program, options).pod
        made.append(manifests.pod("marless-0", LaunchOrder("one", "ticket"), program, read, OWNER))
    json.dump(made, sys.stdout)


if __name__ == "__main__":
    main()
