// The groups over rounds as a band: a row for each agent, a letter and a colour for each group. What a decision was
// made from is shown below when a stretch is pointed at, or has the focus.

import { get, pathOf } from "./api.js";
import { h, number, replace, s } from "./dom.js";

const MOST_AGENTS = 48;
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const LEFT = 110;
const WIDEST_TEXT = 14;

export class Groups {
  constructor(job) {
    Object.assign(this, { job, stretches: [], rounds: 0 });
    this.band = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Band of groups" });
    this.note = h("span", { class: "quiet" });
    this.why = h("div", { class: "why", "aria-live": "polite" }, h("span", { class: "quiet" }, "Point at a stretch, or move to it with the arrow keys, to see why agents share or split."));
    this.element = h("section", { class: "card full", "aria-label": "Groups over rounds" }, h("div", { class: "row" }, h("h2", {}, "Groups: who shares a policy"), this.note), this.band, this.why);
    this.seen = new IntersectionObserver((entries) => {
      if (entries.some((each) => each.isIntersecting)) { this.seen.disconnect(); this.appeared = true; this.load(); }
    }, { rootMargin: "200px" });
    this.seen.observe(this.element);
    this.sized = new ResizeObserver(() => this.drawSoon());
    this.sized.observe(this.band);
  }

  close() {
    this.closed = true;
    this.seen.disconnect();
    this.sized.disconnect();
  }

  async load() {
    if (!this.appeared) return;
    const found = await get(pathOf(this.job, "/groups")).catch(() => null);
    if (!found || this.closed) return;
    Object.assign(this, { stretches: found.stretches, rounds: found.rounds });
    this.note.textContent = found.skipped ? `${number(found.skipped)} short stretches are drawn with the one before them` : "";
    this.draw();
  }

  update(events) {
    if (!this.appeared) return;
    for (const { stretch } of events) {
      const last = this.stretches[this.stretches.length - 1];
      if (last && last.first === stretch.first) last.last = stretch.last;
      else if (!last || stretch.first > last.last) this.stretches.push(stretch);
      this.rounds = Math.max(this.rounds, stretch.last + 1);
    }
    this.drawSoon();
  }

  drawSoon() {
    this.later ??= setTimeout(() => { this.later = null; if (!this.closed) this.draw(); }, 250);
  }

  draw() {
    const width = Math.max(this.band.clientWidth - 4, 320);
    if (!this.stretches.length || (this.drawn === `${width} ${this.rounds} ${this.stretches.length}`)) return;
    this.drawn = `${width} ${this.rounds} ${this.stretches.length}`;
    const focused = this.band.contains(document.activeElement) ? Number(document.activeElement.dataset.at) : null;
    const agents = [...new Set(this.stretches.flatMap((each) => each.groups.flatMap(([, members]) => members)))];
    const rows = agents.slice(0, MOST_AGENTS);
    const high = rows.length > 16 ? 10 : 18;
    const x = (round) => LEFT + ((width - LEFT) * round) / Math.max(this.rounds, 1);
    const cells = rows.flatMap((agent, row) => this.cells(agent, row, agents, high, x));
    const names = rows.map((agent, row) => s("text", { x: LEFT - 6, y: row * high + high - 5, "text-anchor": "end" }, agent.length > WIDEST_TEXT ? `${agent.slice(0, WIDEST_TEXT - 1)}…` : agent));
    const height = rows.length * high;
    const marks = this.stretches.map((stretch, at) => s("rect", {
      class: "stretch", x: x(stretch.first), y: 0, width: Math.max(x(stretch.last + 1) - x(stretch.first), 1), height,
      tabindex: at === (focused ?? this.stretches.length - 1) ? 0 : -1, "data-at": at, role: "button", "aria-label": words(stretch),
      onmouseenter: () => this.explain(stretch), onfocus: () => this.explain(stretch), onkeydown: (event) => this.key(event, at),
    }));
    const ticks = [0, 0.25, 0.5, 0.75, 1].map((part) => s("text", { class: "axis", x: LEFT + (width - LEFT) * part, y: height + 14, "text-anchor": part === 1 ? "end" : part ? "middle" : "start" }, number(Math.round(this.rounds * part))));
    replace(this.band, s("svg", { width, height: height + 20, role: "group", "aria-label": `Groups of ${agents.length} agents over ${this.rounds} rounds` }, names, cells, marks, ticks));
    if (agents.length > rows.length) this.note.textContent = `the first ${rows.length} of ${agents.length} agents`;
    if (focused !== null) this.band.querySelector(`[data-at="${focused}"]`)?.focus();
  }

  /** The row of an agent: neighbouring stretches in which its group is the same are one cell. */
  cells(agent, row, agents, high, x) {
    const found = [];
    for (const { first, last, groups } of this.stretches) {
      const at = groups.findIndex(([, members]) => members.includes(agent));
      if (at < 0) continue;
      const members = groups[at][1];
      // A group is named after its first agent, so that it keeps its letter while others change.
      const key = agents.indexOf(members[0]);
      const before = found[found.length - 1];
      if (before && before.key === key && before.shared === members.length > 1) before.last = last;
      else found.push({ key, first, last, shared: members.length > 1 });
    }
    return found.flatMap(({ key, first, last, shared }) => {
      const [left, right] = [x(first), x(last + 1)];
      const cell = s("rect", { x: left, y: row * high + 1, width: Math.max(right - left - 0.5, 0.5), height: high - 2, rx: 2, fill: `var(--line-${key % 8})`, "fill-opacity": shared ? 0.75 : 0.28 });
      const letter = LETTERS[key % 26] + (key >= 26 ? Math.floor(key / 26) : "");
      return right - left > 18 && high > 12 ? [cell, s("text", { x: (left + right) / 2, y: row * high + high - 5, "text-anchor": "middle", "aria-hidden": "true" }, letter)] : [cell];
    });
  }

  key(event, at) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -at, End: this.stretches.length - 1 - at }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const next = this.band.querySelector(`[data-at="${Math.max(0, Math.min(this.stretches.length - 1, at + step))}"]`);
    if (!next) return;
    event.target.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  }

  async explain(stretch) {
    const turn = this.turn = (this.turn || 0) + 1;
    const head = [h("b", {}, `Rounds ${stretch.first + 1} to ${stretch.last + 1}: `), stretch.reason || "no reason is recorded", h("span", { class: "quiet" }, stretch.rule ? ` (${stretch.rule})` : ""),
      h("div", {}, stretch.groups.map(([policy, members]) => `${policy}: ${members.join(", ")}`).join(" · "))];
    replace(this.why, head);
    const found = await get(pathOf(this.job, `/rounds/${stretch.first}`)).catch(() => null);
    if (turn !== this.turn || !found) return;
    const decision = found.decisions.find((each) => each.kind === "sharing");
    replace(this.why, head, decision && Object.keys(decision.inputs).length ? h("dl", { "aria-label": "What it was decided from" }, Object.entries(decision.inputs).map(([name, value]) => [h("dt", {}, name), h("dd", {}, brief(value))])) : null);
  }
}

function words({ first, last, groups, reason }) {
  return `Rounds ${first + 1} to ${last + 1}: ${groups.map(([, members]) => members.join(" and ")).join("; ")}. ${reason}`;
}

/** JSON with numbers of four digits. */
export function brief(value) {
  if (typeof value === "number") return number(value);
  if (Array.isArray(value)) return `[${value.slice(0, 40).map(brief).join(", ")}${value.length > 40 ? ", …" : ""}]`;
  if (value && typeof value === "object") return Object.entries(value).map(([name, each]) => `${name}: ${brief(each)}`).join(", ");
  return String(value);
}
