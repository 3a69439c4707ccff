"""The dashboard's pages in a real browser: live, by keyboard, on a small screen, and with names that are markup."""

import json
import re
from dataclasses import replace

import pytest

from marless.jobs.record import Decision, GroupRecord
from tests.unit.jobs.test_record import RETURNS, record

pytestmark = pytest.mark.browser
HOSTILE = "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script>"
SPEC = b"name: tiny\nenv: {name: mpe/simple_spread}\nalgorithm: ippo\nstop: {rounds: 50, cost_usd: 1.5}\n"
SMALL, DARK = {"viewport": {"width": 360, "height": 740}}, {"color_scheme": "dark"}


def job(coordinator, name="tiny", rounds=12, **changes):
    made = coordinator.add(name, files={"spec.yaml": SPEC})
    apart = tuple(GroupRecord(policy=each, agents=(each,), version=1) for each in ("a", "b"))
    for number in range(rounds):
        more = {"evaluation": RETURNS, "groups": apart if 4 <= number < 8 else record().groups} | changes
        made.records.append(record(number, job=name, **more).to_json())
    made.job.rounds = rounds
    made.files["rounds.jsonl"] = "".join(f"{line}\n" for line in made.records).encode()
    return made


def test_jobs_are_live_filtered_sorted_and_cancelled_after_a_question(coordinator, opened):
    job(coordinator, "spread-1", rounds=3)
    job(coordinator, "other-2", rounds=7)
    opened.see("spread-1")
    opened.see("other-2")
    rows = opened.page.locator("tbody tr")
    opened.page.get_by_role("button", name="Rounds").click()
    assert rows.first.inner_text().split("\t")[1].strip() == "other-2"
    opened.page.get_by_label("Filter", exact=True).fill("spread-")
    assert rows.count() == 1
    coordinator.happen("spread-1", rounds=1)
    opened.page.locator("tbody td", has_text=re.compile("^4$")).wait_for()
    opened.page.get_by_role("button", name="Cancel spread-1").click()
    assert coordinator.servicer.jobs["spread-1"].job.state == 2  # only asked so far
    opened.page.get_by_role("dialog").get_by_role("button", name="Cancel job").click()
    opened.see("cancelled")
    opened.page.get_by_role("button", name="Resume spread-1").click()
    opened.page.get_by_role("dialog").get_by_role("button", name="Resume job").click()
    opened.page.get_by_role("button", name="Cancel spread-1").wait_for()
    assert opened.said == []


def test_a_job_is_submitted_and_shown(coordinator, opened):
    opened.page.get_by_role("button", name="Submit a job").click()
    opened.page.get_by_label("Its text").fill("env: {name: mpe/simple_spread}")
    opened.page.get_by_role("button", name="Submit", exact=True).click()
    opened.see("stop")  # the error says what is missing
    opened.page.get_by_label("Its text").fill(SPEC.decode())
    opened.page.get_by_label("Job id").fill("from-page")
    opened.page.get_by_role("button", name="Submit", exact=True).click()
    opened.page.get_by_role("heading", name="from-page").wait_for()
    assert "from-page" in coordinator.servicer.jobs


def test_a_job_grows_on_its_page(coordinator, opened):
    job(coordinator)
    opened.show("/job/tiny")
    chart = opened.page.locator(".plot[aria-label^='Return per agent']")
    chart.wait_for()
    opened.see("12 of 50")
    coordinator.happen("tiny", rounds=3, log=('{"level": "error", "event": "worker.lost", "round": 13}',))
    opened.see("15 of 50")
    opened.page.locator(".log li", has_text="worker.lost").wait_for()
    opened.see("critic 16")  # the newest versions are those of the last round
    opened.page.get_by_text("16 faults").wait_for()  # in each of these records an invocation was repeated
    opened.page.get_by_text("Checkpoints and other files").click()
    with opened.page.expect_download() as download:
        opened.page.get_by_role("button", name="Save spec.yaml").click()
    assert download.value.path().read_bytes() == SPEC
    assert opened.said == []


def test_the_fleet_shows_pools_drains_and_machines(opened):
    worker = {
        "worker": HOSTILE, "pool": "actor", "launcher": "ec2", "host": "h", "machine": "i-1", "busy": True,
        "drain": "its machine ends: spot", "served": 7, "memory_bytes": 3e6, "jobs": ["tiny"], "background": False,
    }  # fmt: skip
    idle = worker | {"worker": "learner-0", "pool": "learner", "busy": False, "drain": ""}
    pool = {
        "name": "actor_pool", "launcher": "ec2", "workers": 1, "busy": 1, "draining": 1, "starting": 2, "limit": 9,
        "room": None, "queued": 4, "refused": "no room",
    }  # fmt: skip
    machine = {"id": "i-1", "pool": "actor", "launcher": "ec2", "workers": 1, "tasks": 1, "draining": True}
    found = {"services": [], "pools": [pool], "workers": [worker, idle], "machines": [machine], "problems": []}
    opened.page.route("**/api/fleet", lambda route: route.fulfill(json=found))
    opened.show("/fleet")
    opened.see("draining: its machine ends: spot")
    pools = opened.page.get_by_role("region", name="Table of pools").locator("td").all_inner_texts()
    assert pools == ["ec2", "1", "1", "2", "1", "9", "not known", "4", "⚠ no room"]
    assert opened.page.get_by_role("region", name="Table of machines").locator("td").last.inner_text() == "◌ draining"
    assert opened.page.get_by_role("region", name="Table of learner workers on h").locator("td").first.inner_text() == (
        "○ idle"
    )
    assert opened.page.locator("main img").count() == 0 and opened.said == []


def test_names_are_never_markup(coordinator, opened):
    agents = ("a" + HOSTILE, "b")
    returns = replace(RETURNS, per_agent=dict.fromkeys(agents, -1.0))
    sharing = Decision(kind="sharing", rule=HOSTILE, outcome=HOSTILE, reason=HOSTILE, inputs={HOSTILE: HOSTILE})
    made = job(
        coordinator, rounds=4, returns=returns, evaluation=returns, metrics={HOSTILE: {HOSTILE: 1.0}},
        groups=(GroupRecord(policy=HOSTILE, agents=agents, version=1),), decisions=(sharing,),
    )  # fmt: skip
    made.log = [json.dumps({"event": HOSTILE, "level": "error", "reason": HOSTILE}), HOSTILE]
    made.job.reason = made.job.env = HOSTILE
    made.files[f"{HOSTILE}.yaml"] = HOSTILE.encode()
    coordinator.happen("tiny")
    opened.see(HOSTILE)
    opened.show("/job/tiny")
    opened.page.get_by_text("Groups: who shares").scroll_into_view_if_needed()
    opened.page.locator(".stretch").first.focus()
    opened.page.locator(".why dd", has_text="onerror").wait_for()
    opened.page.get_by_text("Checkpoints and other files").click()
    opened.page.locator("th", has_text="onerror").first.wait_for()
    opened.page.locator(".log li", has_text="onerror").first.wait_for()
    opened.show("/compare?job=tiny")
    opened.page.locator("td", has_text="-20.50").or_(opened.page.locator("td", has_text="-1.00")).first.wait_for()
    assert opened.page.locator("main img, main script").count() == 0
    assert "hit" not in opened.page.title()
    assert opened.said == []


def test_a_coordinator_that_is_gone_is_told_and_comes_back(coordinator, opened):
    job(coordinator)
    opened.show("/job/tiny")
    opened.see("12 of 50")
    coordinator.kill()
    gone = opened.page.locator("#link .gone")
    gone.wait_for()
    opened.see("12 of 50")  # what was known stays
    assert gone.is_visible()
    coordinator.start()
    gone.wait_for(state="detached")
    coordinator.happen("tiny", rounds=1)
    opened.see("13 of 50")
    assert opened.page.locator("#link .gone").count() == 0


def test_without_the_token_nothing_is_shown(coordinator, opened):
    job(coordinator)
    opened.see("tiny")
    opened.page.evaluate("sessionStorage.clear()")
    opened.page.goto("about:blank")
    opened.page.goto(f"{opened.address}/#/jobs")
    field = opened.page.get_by_label("Token", exact=True)
    field.fill("wrong")
    opened.page.get_by_role("button", name="Open").click()
    field.wait_for()
    assert opened.page.get_by_text("tiny").count() == 0
    field.fill(opened.token)
    opened.page.get_by_role("button", name="Open").click()
    opened.see("tiny")
    assert "token" not in opened.page.url and opened.page.context.cookies() == []


def test_a_page_is_small_and_asks_nobody_else(coordinator, opened):
    job(coordinator)
    opened.see("tiny")
    sizes = "performance.getEntriesByType('resource').reduce((sum, each) => sum + each.encodedBodySize, 0)"
    assert opened.page.evaluate(sizes) < 150_000
    opened.show("/job/tiny")
    opened.page.locator(".plot canvas").first.wait_for()
    assert all(url.startswith((opened.address, "data:", "blob:")) for url in opened.asked)
    assert not any(opened.token in url for url in opened.asked)


def test_everything_is_reached_by_keyboard(coordinator, opened):
    job(coordinator)
    opened.see("tiny")
    opened.page.keyboard.press("Tab")
    assert opened.page.evaluate("document.activeElement.id") == "skip"
    opened.page.keyboard.press("Enter")
    assert opened.page.evaluate("document.activeElement.id") == "main"
    opened.show("/job/tiny")
    chart = opened.page.locator(".plot[aria-label^='Return per agent']")
    chart.locator("canvas").wait_for()
    chart.focus()
    opened.page.keyboard.press("ArrowLeft")
    opened.see("env steps 1,")
    opened.page.keyboard.press("+")
    whole = opened.page.get_by_role("button", name="Whole run")
    whole.first.wait_for()
    opened.page.keyboard.press("0")
    whole.first.wait_for(state="hidden")
    opened.page.get_by_text("Groups: who shares").scroll_into_view_if_needed()
    stretches = opened.page.locator(".stretch")
    stretches.last.wait_for()
    stretches.last.focus()
    opened.page.keyboard.press("ArrowLeft")
    opened.see("Rounds 5 to 8")


PLACES = ("/jobs", "/job/tiny", "/compare?job=tiny&job=more", "/fleet")


@pytest.mark.parametrize("opened", [SMALL, DARK, {}], indirect=True, ids=["small", "dark", "light"])
def test_pages_are_accessible_and_fit(coordinator, opened):
    from axe_playwright_python.sync_playwright import Axe

    job(coordinator)
    job(coordinator, "more")
    found = []
    for place in PLACES:
        opened.show(place)
        opened.page.locator("h1").first.wait_for()
        opened.page.wait_for_timeout(1500)  # until all that is in view has loaded: streams never end
        assert opened.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, place
        for each in Axe().run(opened.page).response["violations"]:
            if each["impact"] in ("serious", "critical"):
                found.append((place, each["id"], [node["html"][:120] for node in each["nodes"][:3]]))
    assert found == []
