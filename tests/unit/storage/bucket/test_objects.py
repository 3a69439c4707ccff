"""The bucket that other tests use does what S3 does; and a server that does less is found out."""

import pytest

from marless.core.errors import SpecError
from marless.storage.bucket.objects import check_conditions
from marless.storage.places import Address
from tests.unit.storage.bucket.contract import every_check
from tests.unit.storage.bucket.memory import MemoryObjects


@every_check
def test_the_bucket_in_memory(check, tmp_path):
    check(MemoryObjects(), tmp_path)


def test_a_server_that_ignores_conditions_is_refused():
    objects = MemoryObjects(honours_conditions=False)
    with pytest.raises(SpecError, match="s3://b/p: this server ignores If-None-Match and If-Match"):
        check_conditions(objects, Address("b", "p"))
    assert not objects.held
