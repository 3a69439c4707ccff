"""What tests of other parts share with those of the launcher `docker`: a cluster, images and containers."""

from tests.containers.conftest import deployment, images
from tests.integration.conftest import cluster

__all__ = ["cluster", "deployment", "images"]
