"""Prices of spot instances: asked of AWS for machines that dial in, and what happens without an answer."""

from __future__ import annotations

import asyncio
import time

import pytest

from marless.core.machine import Machine
from marless_ec2 import spot
from marless_ec2.settings import Ec2Settings
from marless_ec2.spot import SpotPrices
from tests.cloud.between import Answer, Between

pytestmark = [pytest.mark.cloud, pytest.mark.asyncio]
ACTION = "DescribeSpotPriceHistory"
ONE = "id=i-1,provider=aws,type=c6a.4xlarge,market=spot,zone=eu-central-1a"
TWO = "id=i-2,provider=aws,type=c7i.4xlarge,market=spot,zone=eu-central-1b"
BOUGHT = "id=i-3,provider=aws,type=g5.xlarge,market=on-demand,zone=eu-central-1a"
LIMIT_S = 60.0


def history(*rows: tuple[str, str, str, str]) -> Answer:
    """What EC2 answers: type, zone, price and time of each row."""
    items = "".join(
        f"<item><instanceType>{kind}</instanceType><availabilityZone>{zone}</availabilityZone>"
        f"<productDescription>Linux/UNIX</productDescription><spotPrice>{usd}</spotPrice><timestamp>{at}</timestamp></item>"
        for kind, zone, usd, at in rows
    )
    return 200, (
        f'<{ACTION}Response xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
        f"<spotPriceHistorySet>{items}</spotPriceHistorySet></{ACTION}Response>"
    )


def says(answer: Answer, found: Between) -> None:
    found.handles[ACTION] = lambda _given, _forward: answer


async def until_asked(found: Between, times: int) -> None:
    began_s = time.monotonic()
    while len(found.made(ACTION)) < times:  # a server of a thread tells nobody
        assert time.monotonic() - began_s < LIMIT_S
        await asyncio.sleep(0.02)


async def known(prices: SpotPrices, text: str) -> float:
    began_s = time.monotonic()
    while (usd_h := prices.usd_h(Machine.parse(text))) is None:
        assert time.monotonic() - began_s < LIMIT_S
        await asyncio.sleep(0.02)
    return usd_h


@pytest.fixture
def prices(aws_between) -> SpotPrices:
    return SpotPrices(Ec2Settings("actors", "eu-central-1", aws_s=5.0))


async def test_the_newest_price_of_a_type_in_its_zone_counts(prices, aws_between):
    says(
        history(
            ("c6a.4xlarge", "eu-central-1a", "0.2448", "2026-11-24T11:00:00.000Z"),
            ("c6a.4xlarge", "eu-central-1a", "0.2001", "2026-11-24T10:00:00.000Z"),
            ("c6a.4xlarge", "eu-central-1b", "0.9", "2026-11-24T11:00:00.000Z"),
            ("c7i.4xlarge", "eu-central-1b", "0.3312", "2026-11-24T11:00:00.000Z"),
        ),
        aws_between,
    )
    prices.learn([ONE, TWO, BOUGHT, "no machine at all"])
    assert (await known(prices, ONE), await known(prices, TWO)) == (0.2448, 0.3312)
    assert prices.usd_h(Machine.parse(BOUGHT)) is None
    assert prices.usd_h(Machine.parse(ONE.replace("spot", "on-demand"))) is None
    assert prices.usd_h(Machine.parse(ONE.replace("1a", "1b"))) is None, "nobody asked for it"
    [call] = aws_between.made(ACTION)
    assert [call["InstanceType.1"], call["InstanceType.2"]] == ["c6a.4xlarge", "c7i.4xlarge"]
    assert (call["StartTime"], call["ProductDescription.1"]) == (call["EndTime"], "Linux/UNIX")
    await prices.close()


async def test_it_asks_once_an_hour_for_a_type_in_a_zone(prices, aws_between, monkeypatch):
    says(history(("c6a.4xlarge", "eu-central-1a", "0.2448", "2026-11-24T11:00:00.000Z")), aws_between)
    prices.learn([ONE])
    await known(prices, ONE)
    prices.learn([ONE.replace("i-1", "i-4")])
    says(history(("c7i.4xlarge", "eu-central-1b", "0.3312", "2026-11-24T11:00:00.000Z")), aws_between)
    prices.learn([ONE, TWO])
    await known(prices, TWO)
    assert len(aws_between.made(ACTION)) == 2 and "InstanceType.2" not in aws_between.made(ACTION)[1]
    monkeypatch.setattr(spot, "AGAIN_S", 0.0)
    prices.learn([ONE])
    await until_asked(aws_between, 3)
    await prices.close()


async def test_without_the_permission_a_price_is_not_known_and_the_log_says_what_to_allow(prices, aws_between, capsys):
    said = (
        "<Response><Errors><Error><Code>UnauthorizedOperation</Code><Message>no</Message></Error></Errors></Response>"
    )
    says((403, said), aws_between)
    prices.learn([ONE])
    await until_asked(aws_between, 1)
    await asyncio.wait_for(prices._asking, LIMIT_S)
    assert prices.usd_h(Machine.parse(ONE)) is None
    told = capsys.readouterr()
    assert "allow ec2:DescribeSpotPriceHistory" in told.out + told.err
    prices.learn([ONE])
    assert len(aws_between.made(ACTION)) == 1, "it is not asked again at once"


async def test_a_price_that_no_machine_has_is_not_believed(prices, aws_between):
    rows = (("c6a.4xlarge", "eu-central-1a", "9999", "2026-11-24T11:00:00.000Z"),)
    says(history(*rows, ("c7i.4xlarge", "eu-central-1b", "0.3312", "2026-11-24T11:00:00.000Z")), aws_between)
    prices.learn([ONE, TWO])
    await known(prices, TWO)
    assert prices.usd_h(Machine.parse(ONE)) is None
