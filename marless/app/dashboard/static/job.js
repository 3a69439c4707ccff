// The page of one job. Parts load when they come into view, and follow the job by one stream.

import { Stream, get, pathOf } from "./api.js";
import { Chart } from "./chart.js";
import { actions, problems } from "./dialogs.js";
import { byName, clock, duration, fixed, h, number, percent, replace, stateBadge, usd } from "./dom.js";
import { Bills } from "./bills.js";
import { Files } from "./files.js";
import { Groups } from "./groups.js";
import { Log } from "./log.js";
import { Timeline } from "./timeline.js";

const AXES = { "env-steps": "env steps", rounds: "rounds", seconds: "seconds", usd: "US dollars" };
const MOST_LINES = 24;
const FEW = 3; // evaluations: with fewer, returns of agents are those of training
const MAIN_METRICS = ["policy_loss", "value_loss", "loss", "entropy", "approx_kl"];

export function open(main, { name, about, tellLink }) {
  const page = new JobPage(main, name, about, tellLink);
  page.start();
  return page;
}

class JobPage {
  constructor(main, name, about, tellLink) {
    Object.assign(this, { main, name, about, tellLink, charts: [], marks: [], columns: new Set(), axis: "env-steps" });
  }

  async start() {
    replace(this.main, h("h1", {}, this.name), h("p", { class: "quiet" }, "Loading …"));
    let found;
    try {
      found = await get(pathOf(this.name));
    } catch (error) {
      replace(this.main, h("h1", {}, this.name), h("p", { class: "problem", role: "alert" }, error.message), h("a", { href: "#/jobs" }, "All jobs"));
      if (error.status === 0 || error.status === 503) this.again = setTimeout(() => this.start(), 1500);
      return;
    }
    if (this.closed) return;
    this.stop = found.stop;
    this.summary = found.summary;
    this.marks = found.marks;
    found.columns.forEach((each) => this.columns.add(each));
    this.build(found);
    this.show(found);
    this.stream = new Stream(pathOf(this.name, "/events"), {
      state: (data) => this.show(data),
      rounds: (events) => this.update(events),
      marks: (marks) => { this.marks = marks; this.tellMarks(); },
      reset: () => this.reload(),
      log: (lines) => this.log.add(lines),
    }, (sentence) => { this.broken = sentence; this.tell(); });
  }

  close() {
    this.closed = true;
    clearTimeout(this.again);
    this.stream?.close();
    [...this.charts, this.groups, this.timeline, this.bills].forEach((each) => each?.close?.());
  }

  build(found) {
    const has = (prefix) => found.columns.filter((each) => each.startsWith(prefix)).sort(byName);
    this.head = h("div", { class: "row head" });
    this.notes = h("div");
    this.facts = h("dl", { class: "facts" });
    const axis = h("select", { id: "axis", onchange: () => this.setAxis(axis.value) }, Object.entries(AXES).map(([value, text]) => h("option", { value }, text)));
    const random = found.job.random_return;
    this.returns = this.chart({ title: "Return per agent", names: ["return/greedy", "return/exploring"], labels: { "return/greedy": "greedy", "return/exploring": "exploring" }, constants: random === null ? {} : { "random policy": random } });
    this.few = found.evaluations < FEW;
    this.agentReturns = this.agents(has("agent/"), random);
    this.actors = this.chart({ title: "Actors and what asked for them", ...this.signals(has("signal/")) });
    this.metrics = this.metricChart(has("metric/"));
    const parts = [this.returns, this.agentReturns, this.actors, this.metrics.chart];
    if (has("won/").length) {
      this.won = this.chart({ range: [0, 1], title: "Episodes won", names: ["won/greedy", "won/exploring"], labels: { "won/greedy": "greedy", "won/exploring": "exploring" }, constants: found.job.random_win_rate === null ? {} : { "random policy": found.job.random_win_rate } });
      parts.splice(1, 0, this.won);
    }
    if (has("staleness/").length) parts.push(this.chart({ title: "Staleness of gradients", names: ["staleness/mean", "staleness/most"], labels: { "staleness/mean": "mean", "staleness/most": "most" }, note: "versions" }));
    this.bills = new Bills(this.name, (chart) => this.adopt(chart));
    parts.push(this.bills, this.chart({ title: "Seconds of a round", names: ["phase/rollout", "phase/update", "phase/evaluation"], labels: { "phase/rollout": "rollout", "phase/update": "update", "phase/evaluation": "evaluation" } }));
    this.groups = new Groups(this.name);
    this.timeline = new Timeline(this.name, () => this.rounds);
    this.log = new Log();
    this.files = new Files(this.name, found);
    this.faults = h("details", { class: "marks" });
    replace(this.main, this.head, this.notes, this.facts,
      h("div", { class: "row" }, h("label", { for: "axis" }, "Curves over"), axis, this.faults),
      h("div", { class: "grid" }, parts.map((part) => part.element),
        this.groups.element, this.timeline.element, this.log.element, this.files.element));
    this.rounds = found.rounds;
    this.tellMarks();
  }

  adopt(chart) {
    this.charts.push(chart);
    chart.setMarks(this.marks);
    return chart;
  }

  chart(options) {
    return this.adopt(new Chart(this.name, options));
  }

  /** Returns by agent; of many agents the first ones. */
  agents(columns, random) {
    const exploring = columns.filter((each) => each.startsWith("agent/exploring/"));
    const greedy = columns.filter((each) => each.startsWith("agent/greedy/"));
    const names = (greedy.length && !this.few ? greedy : exploring).slice(0, MOST_LINES);
    const labels = Object.fromEntries(names.map((each) => [each, each.split("/").slice(2).join("/")]));
    const more = Math.max(greedy.length, exploring.length) - names.length;
    return this.chart({ title: "Return by agent", names, labels, constants: random === null ? {} : { "random policy": random }, note: [this.few ? "exploring" : "greedy", more > 0 ? `${more} more agents not shown` : ""].filter(Boolean).join("; ") });
  }

  signals(columns) {
    const names = ["actors", ...columns].slice(0, 8);
    const labels = Object.fromEntries(names.map((each) => [each, each === "actors" ? "actors" : each.slice(7)]));
    return { names, labels };
  }

  metricChart(columns) {
    const known = columns.map((each) => each.slice(7)).sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
    const chart = this.chart({ title: "Losses and measures", ...metricNames(known[0] || "", this.columns) });
    const select = h("select", { "aria-label": "Which measure", onchange: () => {
      const { names, labels } = metricNames(select.value, this.columns);
      chart.setNames(names, labels);
    } }, known.map((each) => h("option", { value: each }, each.replaceAll("_", " "))));
    chart.element.querySelector("h2").after(select);
    return { chart, select, known };
  }

  setAxis(axis) {
    this.axis = axis;
    this.charts.forEach((chart) => chart.setAxis(axis));
    clearInterval(this.pricing);
  }

  show(data) {
    this.unreachable = data.unreachable;
    this.tell();
    problems(this.notes, data.problem ? [data.problem] : []);
    const job = data.job;
    if (!job) return;
    this.job = job;
    this.rounds = Math.max(this.rounds || 0, job.rounds);
    replace(this.head, h("h1", {}, job.job), stateBadge(job.state), h("span", { class: "quiet" }, job.reason), actions(job, this.about.writable));
    this.returns.setConstant("random policy", job.random_return);
    this.agentReturns.setConstant("random policy", job.random_return);
    this.won?.setConstant("random policy", job.random_win_rate);
    this.tellFacts();
  }

  tell() {
    this.tellLink(this.broken || this.unreachable || "");
  }

  tellFacts() {
    const { job, stop = {}, summary } = this;
    const of = (value, limit) => `${number(value)}${limit ? ` of ${number(limit)}` : ""}`;
    const cost = this.bills.total() ?? summary?.cost_usd;
    const facts = [["Environment", job.env], ["Algorithm", job.algorithm], ["Rounds", of(this.rounds, stop.rounds)], ["Env steps", of(this.steps ?? job.env_steps, stop.env_steps)],
      ["Greedy return", fixed(this.greedy ?? job.greedy_return)], ["Random policy", fixed(job.random_return)], ["Won", percent(this.winRate ?? job.win_rate)],
      ["Cost", usd(cost) + (stop.cost_usd ? ` of ${usd(stop.cost_usd)}` : "")], ["Accepted", clock(job.accepted_s)],
      ["Time", duration((job.ended_s || Date.now() / 1000) - job.accepted_s)], ["Resumed", job.resumes ? `${job.resumes} ×` : ""]];
    replace(this.facts, facts.filter(([, value]) => value).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
  }

  update(events) {
    const fresh = events.flatMap((event) => event.rows);
    this.rounds = Math.max(this.rounds || 0, ...fresh.map((row) => row.round + 1));
    this.steps = Math.max(this.steps || 0, ...fresh.map((row) => row.values.env_steps || 0));
    for (const { values } of fresh) {
      this.greedy = values["return/greedy"] ?? this.greedy;
      this.winRate = values["won/greedy"] ?? this.winRate;
    }
    this.files.showVersions(events.at(-1).versions);
    const added = fresh.flatMap((row) => Object.keys(row.values)).filter((each) => !this.columns.has(each));
    added.forEach((each) => this.columns.add(each));
    if (added.length) this.addColumns(new Set(added));
    this.charts.forEach((chart) => chart.update(events));
    this.groups.update(events);
    this.bills.update();
    this.tellFacts();
  }

  /** Curves that the job has only now: those that charts show by rule. */
  addColumns(added) {
    const all = [...this.columns].sort(byName);
    if ([...added].some((each) => each.startsWith("agent/"))) {
      const kind = this.few ? "agent/exploring/" : "agent/greedy/";
      const names = all.filter((each) => each.startsWith(kind)).slice(0, MOST_LINES);
      this.agentReturns.setNames(names, Object.fromEntries(names.map((each) => [each, each.slice(kind.length)])));
    }
    if ([...added].some((each) => each.startsWith("signal/"))) {
      const { names, labels } = this.signals(all.filter((each) => each.startsWith("signal/")));
      this.actors.setNames(names, labels);
    }
    if ([...added].some((each) => each.startsWith("metric/"))) {
      const { chart, select, known } = this.metrics;
      const more = [...added].filter((each) => each.startsWith("metric/")).map((each) => each.slice(7)).filter((each) => !known.includes(each));
      more.sort((a, b) => rank(a) - rank(b));
      known.push(...more);
      more.forEach((each) => select.append(h("option", { value: each }, each.replaceAll("_", " "))));
      const { names, labels } = metricNames(select.value, this.columns);
      chart.setNames(names, labels);
    }
  }

  async reload() {
    const found = await get(pathOf(this.name)).catch(() => null);
    if (!found || this.closed) return;
    this.marks = found.marks;
    this.rounds = found.rounds;
    this.greedy = this.winRate = undefined;
    const added = found.columns.filter((each) => !this.columns.has(each));
    added.forEach((each) => this.columns.add(each));
    if (added.length) this.addColumns(new Set(added));
    this.charts.forEach((chart) => chart.appeared && chart.load());
    this.groups.load();
    this.files.showVersions(found.versions);
    this.tellMarks();
  }

  tellMarks() {
    this.charts.forEach((chart) => chart.setMarks(this.marks));
    const faults = this.marks.filter((mark) => mark.kind === "fault").length;
    this.faults.hidden = !this.marks.length;
    const recoveries = this.marks.length - faults;
    const open = this.faults.open;
    replace(this.faults, h("summary", {}, `▼ ${faults} ${faults === 1 ? "fault" : "faults"}, ○ ${recoveries} ${recoveries === 1 ? "recovery" : "recoveries"}`),
      h("ul", {}, this.marks.slice(-100).reverse().map((mark) => h("li", {}, mark.kind === "fault" ? "▼ " : "○ ", `round ${mark.round + 1}: `, mark.text))));
    this.faults.open = open;
  }
}

function rank(name) {
  const at = MAIN_METRICS.indexOf(name);
  return at < 0 ? MAIN_METRICS.length : at;
}

/** A measure's mean over policies, and its value for each. */
function metricNames(metric, columns) {
  const policies = [...columns].filter((each) => each.startsWith(`policy/${metric}/`)).sort(byName).slice(0, MOST_LINES - 1);
  const labels = { [`metric/${metric}`]: policies.length ? "mean" : metric };
  policies.forEach((each) => { labels[each] = each.slice(`policy/${metric}/`.length); });
  return { names: [`metric/${metric}`, ...policies], labels };
}
