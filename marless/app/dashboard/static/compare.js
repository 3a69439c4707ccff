// Compares jobs: seeds as a line and a band, the last returns, and return against cost.

import { get } from "./api.js";
import { baseOptions, loadLibrary, sample } from "./plotting.js";
import { problems } from "./dialogs.js";
import { colour, dashes, fixed, h, number, replace, usd } from "./dom.js";
import { scatter } from "./scatter.js";

const AXES = { "env-steps": "env steps", rounds: "rounds", seconds: "seconds", usd: "US dollars, billed" };
const QUANTITIES = { return: "return per agent", "win-rate": "episodes won" };
const GROUPS = { settings: "jobs that differ in the seed alone", job: "each job", id: "ids that differ in -seedN", "algorithm.name": "algorithm" };
const HEIGHT = 360;
const PRICING_MS = 1500;

export function open(main, { query, tellLink }) {
  const page = new ComparePage(main, query, tellLink);
  page.start();
  return page;
}

function choice(id, text, options, value, changed) {
  return [h("label", { for: id }, text), h("select", { id, onchange: changed }, Object.entries(options).map(([each, label]) => h("option", { value: each, selected: each === value }, label)))];
}

class ComparePage {
  constructor(main, query, tellLink) {
    Object.assign(this, { main, tellLink, chosen: new Set(query.getAll("job")), x: query.get("x") || "env-steps", y: query.get("y") || "return", group: query.get("group") || "settings" });
    this.themed = () => this.found && this.draw();
    document.addEventListener("themed", this.themed);
  }

  close() {
    this.closed = true;
    clearTimeout(this.later);
    document.removeEventListener("themed", this.themed);
    this.sized?.disconnect();
    this.plot?.destroy();
  }

  async start() {
    this.picker = h("div", { class: "picker", role: "group", "aria-label": "Jobs to compare" });
    this.filter = h("input", { type: "search", id: "pick", placeholder: "Filter jobs", oninput: () => this.drawPicker() });
    this.notes = h("div");
    this.place = h("div", { class: "plot", role: "img", "aria-label": "No job is chosen" });
    this.legend = h("div", { class: "legend" });
    this.frontier = h("div");
    this.table = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of results" });
    this.status = h("span", { class: "quiet", role: "status" });
    replace(this.main, h("h1", {}, "Compare"),
      h("details", { class: "card spaced", open: this.chosen.size === 0 }, h("summary", {}, "Jobs"), h("div", { class: "row" }, h("label", { for: "pick", class: "hidden" }, "Filter jobs"), this.filter,
        h("button", { type: "button", class: "small", onclick: () => this.chooseShown() }, "Choose all shown"), h("button", { type: "button", class: "small", onclick: () => { this.chosen.clear(); this.drawPicker(); this.load(); } }, "None")), this.picker),
      h("div", { class: "row" }, h("span", {}), choice("x", "Over", AXES, this.x, (event) => { this.x = event.target.value; this.load(); }), choice("y", "Shown", QUANTITIES, this.y, (event) => { this.y = event.target.value; this.load(); }),
        choice("group", "A line is", GROUPS, this.group, (event) => { this.group = event.target.value; this.load(); }), this.status),
      this.notes,
      h("div", { class: "grid" }, h("figure", { class: "card full" }, h("div", { class: "top" }, h("h2", {}, "Interquartile mean of the seeds, with its 95 % interval"), h("span", { class: "quiet" }, "of fewer than four seeds the mean")), this.legend, this.place),
        h("figure", { class: "card" }, h("h2", {}, "Return against cost"), this.frontier), h("section", { class: "card", "aria-label": "Results" }, h("h2", {}, "Results"), this.table)));
    this.sized = new ResizeObserver(() => this.plot && this.plot.setSize({ width: this.place.clientWidth, height: HEIGHT }));
    this.sized.observe(this.place);
    try {
      const listing = await get("jobs");
      this.jobs = listing.jobs.map((each) => each.job);
      this.tellLink(listing.unreachable);
    } catch (error) {
      this.tellLink(error.message);
      this.jobs = [...this.chosen];
    }
    if (this.closed) return;
    this.drawPicker();
    await this.load();
  }

  shownJobs() {
    return this.jobs.filter((each) => each.toLowerCase().includes(this.filter.value.toLowerCase())).slice(0, 300);
  }

  drawPicker() {
    replace(this.picker, this.shownJobs().map((job) => h("label", { title: job }, h("input", { type: "checkbox", checked: this.chosen.has(job), onchange: (event) => {
      if (event.target.checked) this.chosen.add(job);
      else this.chosen.delete(job);
      this.load();
    } }), job)));
  }

  chooseShown() {
    this.shownJobs().forEach((each) => this.chosen.add(each));
    this.drawPicker();
    this.load();
  }

  async load() {
    clearTimeout(this.later);
    const turn = this.turn = (this.turn || 0) + 1;
    const query = { job: [...this.chosen], x: this.x, y: this.y, group: this.group };
    const search = new URLSearchParams([...this.chosen].map((each) => ["job", each]));
    for (const name of ["x", "y", "group"]) search.set(name, this[name]);
    history.replaceState(null, "", `#/compare?${search}`);
    if (!this.chosen.size) {
      this.plot?.destroy();
      this.plot = null;
      [this.table, this.frontier, this.legend, this.notes].forEach((each) => replace(each));
      replace(this.place, h("span", { class: "empty" }, "Choose jobs above."));
      return;
    }
    try {
      const found = await get("compare", query);
      if (turn !== this.turn || this.closed) return;
      this.found = found;
      await loadLibrary();
      this.draw();
      this.status.textContent = found.priced ? "" : "computing costs …";
      if (!found.priced) this.later = setTimeout(() => this.load(), PRICING_MS);
    } catch (error) {
      if (turn !== this.turn || this.closed) return;
      problems(this.notes, [error.message]);
      if (error.status === 0 || error.status === 503) this.later = setTimeout(() => this.load(), PRICING_MS);
    }
  }

  draw() {
    const { groups, runs } = this.found;
    problems(this.notes, this.found.problems);
    replace(this.legend, groups.map((group, index) => h("span", { class: "row" }, sample(index), group.label, h("span", { class: "quiet" }, `${group.courses.length} seed${group.courses.length === 1 ? "" : "s"}`))));
    this.drawLines(groups);
    const numbers = new Map(groups.map((group, index) => [group.label, index]));
    replace(this.frontier, scatter(runs, numbers));
    replace(this.table, h("table", {}, h("thead", {}, h("tr", {}, ["Line", "Seeds", "Last value", "95 % interval", "Random", "Cost, billed", "Unbeaten"].map((each) => h("th", { scope: "col" }, each)))),
      h("tbody", {}, groups.map((group) => this.row(group, runs.filter((run) => run.group === group.label))))));
  }

  row(group, runs) {
    const costs = runs.map((run) => run.cost_usd).filter((each) => each !== null);
    const mean = costs.length === runs.length && costs.length ? costs.reduce((a, b) => a + b, 0) / costs.length : null;
    const random = runs.find((run) => run.random !== null)?.random;
    const { mean: last, low, high } = group.final;
    const best = runs.filter((run) => run.undominated).length;
    return h("tr", {}, h("th", { scope: "row" }, group.label), h("td", {}, number(runs.length)), h("td", {}, fixed(last)), h("td", {}, low === null ? "" : `${fixed(low)} to ${fixed(high)}`), h("td", {}, fixed(random)), h("td", {}, usd(mean)), h("td", {}, best ? `◆ ${best} of ${runs.length}` : ""));
  }

  drawLines(groups) {
    this.plot?.destroy();
    const xs = [...new Set(groups.flatMap((group) => group.line.places))].sort((a, b) => a - b);
    const at = new Map(xs.map((each, index) => [each, index]));
    const column = (places, values) => {
      const found = Array(xs.length).fill(null);
      values.forEach((value, index) => { found[at.get(places[index])] = value; });
      return found;
    };
    const options = baseOptions(this.place.clientWidth || 600, HEIGHT, {});
    options.cursor.drag = { x: true, y: false, setScale: true };
    options.hooks = {};
    options.series = [{}];
    options.bands = [];
    const data = [xs];
    groups.forEach(({ label, line }, index) => {
      data.push(column(line.places, line.center));
      options.series.push({ label, stroke: colour(index), dash: dashes(index), width: 2, spanGaps: true, points: { show: line.places.length < 40, size: 5 } });
      if (!line.low.length) return;
      const edge = { stroke: colour(index), width: 0.5, spanGaps: true, points: { show: false } };
      data.push(column(line.places, line.high), column(line.places, line.low));
      options.series.push({ ...edge, label: `${label}, upper` }, { ...edge, label: `${label}, lower` });
      options.bands.push({ series: [data.length - 2, data.length - 1], fill: `${colour(index)}22` });
    });
    replace(this.place);
    this.plot = new window.uPlot(options, data, this.place);
    const told = groups.map((group) => `${group.label}: last ${fixed(group.final.mean)}`).join("; ");
    this.place.setAttribute("aria-label", `${QUANTITIES[this.y]} over ${AXES[this.x]}. ${told}. The table has the numbers. Drag to zoom, double-click for all.`);
  }
}
