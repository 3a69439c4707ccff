"""What an instance reads about itself, from a metadata service of this machine."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from marless.fleet.launchers.hosts.options import Identity
from marless_ec2 import metadata as imds
from marless_ec2.metadata import InstanceMetadata, Metadata
from tests.plugins.ec2.fake_metadata import metadata


@pytest.fixture
def service():
    with metadata("i-0abc") as fake:
        yield fake


@pytest.fixture
async def first(service, monkeypatch):
    """Waits for the next notice."""
    monkeypatch.setattr(imds, "POLL_S", 0.02)
    notices = InstanceMetadata(Metadata(service.address)).notices()
    yield lambda: anext(notices)
    await notices.aclose()


async def test_an_instance_knows_its_type_market_and_zone(service):
    identity = await InstanceMetadata(Metadata(service.address)).identify()
    launched_s = datetime(2026, 11, 24, 12, tzinfo=UTC).timestamp()
    machine = f"id=i-0abc,provider=aws,type=c6a.4xlarge,market=spot,zone=eu-central-1a,launched_s={launched_s:.0f}"
    assert identity == Identity("i-0abc", machine)


async def test_an_instance_without_a_life_cycle_is_on_demand(service):
    del service.texts["meta-data/instance-life-cycle"]
    assert "market=on-demand," in (await InstanceMetadata(Metadata(service.address)).identify()).machine


def test_an_expired_token_is_renewed(service):
    read = Metadata(service.address)
    assert read.get("meta-data/instance-life-cycle") == "spot"
    service.forget_tokens()
    assert read.get("meta-data/instance-life-cycle") == "spot"
    assert service.asked == ["meta-data/instance-life-cycle"] * 3


async def test_the_notice_of_an_interruption_says_how_long_is_left(service, first):
    end = datetime.now(UTC) + timedelta(seconds=120)
    action = {"action": "terminate", "time": end.strftime("%Y-%m-%dT%H:%M:%SZ")}
    service.texts["meta-data/spot/instance-action"] = json.dumps(action)
    notice = await first()
    assert notice.why == "AWS ends this spot instance"
    assert 115 < notice.seconds <= 120


async def test_a_recommendation_is_a_notice_without_a_time_and_an_interruption_follows(service, first):
    service.texts["meta-data/events/recommendations/rebalance"] = '{"noticeTime": "2026-11-24T12:00:00Z"}'
    assert (await first()).seconds == 0
    service.texts["meta-data/spot/instance-action"] = '{"action": "stop", "time": "2026-11-24T12:00:00Z"}'
    notice = await first()
    assert (notice.why, notice.seconds) == ("AWS stops this spot instance", 1.0)


async def test_what_its_group_wants_is_a_notice(service, first):
    service.texts["meta-data/autoscaling/target-lifecycle-state"] = "Terminated"
    assert await first() == imds.Notice("its group ends it", 240.0)


async def test_an_interruption_that_cannot_be_read_is_one(service, first):
    service.texts["meta-data/spot/instance-action"] = "{"
    assert await first() == imds.Notice("AWS interrupts this spot instance")
    service.texts["meta-data/autoscaling/target-lifecycle-state"] = "Standby"
    assert await first() == imds.Notice("it goes to standby")


async def test_a_service_that_does_not_answer_is_asked_again(service, first, monkeypatch):
    asked, get = [], Metadata.get

    def fails_first(path):
        asked.append(path)
        if len(asked) == 1:
            raise OSError("no route")
        return get(read, path)

    read = Metadata(service.address)
    monkeypatch.setattr(Metadata, "get", lambda _, path: fails_first(path))
    service.texts["meta-data/autoscaling/target-lifecycle-state"] = "Detached"
    assert (await first()).why == "it leaves its group"
