"""Which requests to a bucket `bench.bucket_rounds` takes for what, and how it counts them by the round."""

import pytest

from bench.bucket_rounds import BUCKET, DELETION, DISK, HEAD, OBJECT, OTHER, Cost, Counted, kind, row


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        ({"REQUEST_METHOD": "PUT", "HTTP_IF_MATCH": '"1"'}, HEAD),
        ({"REQUEST_METHOD": "PUT", "HTTP_IF_NONE_MATCH": "*"}, HEAD),
        ({"REQUEST_METHOD": "PUT"}, OBJECT),
        ({"REQUEST_METHOD": "POST", "QUERY_STRING": "delete"}, DELETION),
        ({"REQUEST_METHOD": "DELETE"}, DELETION),
        ({"REQUEST_METHOD": "GET", "HTTP_IF_NONE_MATCH": '"1"'}, OTHER),
        ({"REQUEST_METHOD": "GET", "QUERY_STRING": "list-type=2&prefix=runs/"}, OTHER),
    ],
)
def test_a_request_is_taken_for_what_it_does(request_, what):
    assert kind(request_) == what


def test_requests_and_bytes_are_counted_and_served():
    counted = Counted(lambda request, respond: [b"answer"], later_s=0.0)
    assert counted({"REQUEST_METHOD": "PUT", "CONTENT_LENGTH": "12"}, None) == [b"answer"]
    counted({"REQUEST_METHOD": "GET", "CONTENT_LENGTH": ""}, None)
    assert counted.now == {OBJECT: 1, OTHER: 1, "bytes": 12}


def test_what_a_bucket_adds_is_counted_against_the_disk_of_the_same_run():
    costs = {
        DISK: [Cost(10.0, {}), Cost(30.0, {})],
        BUCKET: [Cost(12.0, {HEAD: 2.0, "bytes": 4000.0}), Cost(31.0, {HEAD: 2.5, "bytes": 6000.0})],
    }
    found = row("task", BUCKET, costs)
    assert found["added (ms)"] == {"median": 1.5, "min": 1.0, "max": 2.0}
    assert (found["heads a round"], found["objects a round"], found["kB a round"]) == (2.25, 0.0, 5.0)
    assert "added (ms)" not in row("task", DISK, costs)
