// Invocations as a timeline: a row for each worker; queued, starting, warm, cold, repeated, and idle where nothing is.

import { get, pathOf } from "./api.js";
import { bytes, h, number, replace, s } from "./dom.js";

const LEFT = 120;
const HIGH = 16;
const NARROWEST = 640;
const KINDS = { actor: 0, evaluation: 2, learner: 1 };
const FEW = 5;

export class Timeline {
  constructor(job, rounds) {
    Object.assign(this, { job, rounds, zoom: 1 });
    this.first = h("input", { type: "number", min: "1", step: "1", id: "timeline-first", value: "1", onchange: () => this.load() });
    this.count = h("select", { id: "timeline-count", onchange: () => this.load() }, [1, 5, 20, 100].map((each) => h("option", { value: each, selected: each === FEW }, `${each} rounds`)));
    this.picture = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Timeline of invocations" });
    this.table = h("details", {}, h("summary", {}, "As a table"));
    this.note = h("span", { class: "quiet", role: "status" });
    this.element = h("section", { class: "card full", "aria-label": "Invocations" },
      h("div", { class: "row" }, h("h2", {}, "Invocations"), h("label", { for: "timeline-first" }, "from round"), this.first, h("label", { for: "timeline-count", class: "hidden" }, "how many"), this.count,
        h("button", { type: "button", class: "small", onclick: () => this.step(-1) }, "Earlier"), h("button", { type: "button", class: "small", onclick: () => this.step(1) }, "Later"),
        h("button", { type: "button", class: "small", onclick: () => this.latest() }, "Newest"), h("button", { type: "button", class: "small", onclick: () => this.widen(2) }, "Wider"), h("button", { type: "button", class: "small", onclick: () => this.widen(0.5) }, "Narrower"), this.note),
      legend(), this.picture, this.table);
    this.seen = new IntersectionObserver((entries) => {
      if (entries.some((each) => each.isIntersecting)) { this.seen.disconnect(); this.latest(); }
    }, { rootMargin: "200px" });
    this.seen.observe(this.element);
  }

  close() {
    this.closed = true;
    this.seen.disconnect();
  }

  latest() {
    this.first.value = Math.max((this.rounds() || 1) - Number(this.count.value) + 1, 1);
    this.load();
  }

  step(sign) {
    this.first.value = Math.max(Number(this.first.value) + sign * Number(this.count.value), 1);
    this.load();
  }

  widen(by) {
    this.zoom = Math.max(1, Math.min(this.zoom * by, 64));
    if (this.found) this.draw(this.found);
  }

  async load() {
    const turn = this.turn = (this.turn || 0) + 1;
    try {
      const found = await get(pathOf(this.job, "/timeline"), { first: Number(this.first.value) - 1, count: this.count.value });
      if (turn === this.turn && !this.closed) this.draw(this.found = found);
    } catch (error) {
      this.note.textContent = error.message;
    }
  }

  draw({ bars, workers, rounds }) {
    this.note.textContent = rounds.length ? `rounds ${rounds[0].round + 1} to ${rounds[rounds.length - 1].round + 1}, ${number(bars.length)} invocations` : "no round is recorded there";
    if (!rounds.length) { replace(this.picture); return; }
    const end = Math.max(...bars.map((bar) => bar.end), rounds[rounds.length - 1].end, 1e-6);
    const width = Math.max(this.picture.clientWidth - 4, NARROWEST) * this.zoom;
    const x = (at) => LEFT + ((width - LEFT - 10) * Math.max(at, 0)) / end;
    const rows = new Map(workers.map((each, row) => [each.worker, row]));
    const height = workers.length * HIGH;
    const lanes = workers.map((each, row) => [
      s("rect", { x: LEFT, y: row * HIGH + 1, width: width - LEFT - 10, height: HIGH - 2, fill: "var(--soft)" }),
      s("text", { x: LEFT - 6, y: row * HIGH + HIGH - 4, "text-anchor": "end" }, each.worker.slice(-18), s("title", {}, `${each.worker} on ${each.machine || "an unknown host"}${each.launcher ? `, by ${each.launcher}` : ""}`))]);
    const edges = rounds.map((each) => s("line", { x1: x(each.start), x2: x(each.start), y1: 0, y2: height, stroke: "var(--quiet)", "stroke-dasharray": "1 3" }, s("title", {}, `round ${each.round + 1}`)));
    const ticks = Array.from({ length: 6 }, (_, at) => s("text", { class: "axis", x: x((end * at) / 5), y: height + 13, "text-anchor": at === 5 ? "end" : "middle" }, `${number((end * at) / 5, 3)} s`));
    replace(this.picture, s("svg", { width, height: height + 18, role: "img", "aria-label": `${bars.length} invocations of ${workers.length} workers in ${number(end, 3)} seconds; the table below has them` },
      hatch(), lanes, edges, bars.map((bar) => shape(bar, rows.get(bar.worker) * HIGH, x)), ticks));
    this.tabulate(bars);
  }

  tabulate(bars) {
    const fill = () => replace(this.table, h("summary", {}, "As a table"), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of invocations" }, h("table", {},
      h("thead", {}, h("tr", {}, ["round", "function", "worker", "queued s", "start s", "ran s", "CPU s", "memory", "start"].map((each) => h("th", { scope: "col" }, each)))),
      h("tbody", {}, bars.slice(0, 300).map((bar) => h("tr", {}, [number(bar.round + 1), `${bar.function} ${bar.name || bar.index}`, bar.worker, number(bar.start - bar.queued, 3), number(bar.start, 4), number(bar.end - bar.start, 3), number(bar.vcpu_s, 3), bytes(bar.memory_bytes), how(bar)].map((each) => h("td", {}, each))))))));
    this.table.ontoggle = () => this.table.open && fill();
    if (this.table.open) fill();
  }
}

function how(bar) {
  return [bar.cold ? "cold" : "warm", bar.attempt > 1 ? `attempt ${bar.attempt}: an earlier one was lost` : ""].filter(Boolean).join(", ");
}

function shape(bar, y, x) {
  const [queued, start, end] = [x(bar.queued), x(bar.start), x(bar.end)];
  const told = `${bar.function} ${bar.name || bar.index}, round ${bar.round + 1}: ran ${number(bar.end - bar.start, 3)} s after ${number(bar.start - bar.queued, 3)} s in the queue; ${how(bar)}`;
  const fill = `var(--line-${KINDS[bar.function] ?? 3})`;
  return s("g", {}, s("title", {}, told),
    start - queued > 0.5 && s("line", { x1: queued, x2: start, y1: y + HIGH / 2, y2: y + HIGH / 2, stroke: fill, "stroke-width": 1.5, "stroke-dasharray": "2 2" }),
    s("rect", { x: start, y: y + 3, width: Math.max(end - start, 1), height: HIGH - 6, rx: 1.5, fill }),
    bar.cold ? s("rect", { x: start, y: y + 3, width: Math.max(end - start, 1), height: HIGH - 6, fill: "url(#cold)" }) : null,
    bar.attempt > 1 ? s("text", { x: start, y: y + HIGH - 4, "text-anchor": "end" }, "✕") : null);
}

function hatch() {
  return s("defs", {}, s("pattern", { id: "cold", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, s("rect", { width: 2, height: 5, fill: "var(--card)", "fill-opacity": 0.65 })));
}

function legend() {
  const swatch = (index) => s("svg", { width: 16, height: 10, "aria-hidden": "true" }, s("rect", { width: 16, height: 10, rx: 2, fill: `var(--line-${index})` }));
  return h("p", { class: "quiet row" }, Object.entries(KINDS).map(([name, index]) => h("span", {}, swatch(index), " ", name)), h("span", {}, "┄ queued"), h("span", {}, "▨ cold start"), h("span", {}, "✕ lost and repeated"), h("span", {}, "empty: idle"));
}
