// A chart of some curves over an axis: live, zoomable, with marks of faults. Draws with uPlot, which is loaded once.

import { get, pathOf } from "./api.js";
import { colour, cssValue, dashes, h, number, replace } from "./dom.js";
import { baseOptions, drawMarks, loadLibrary, sample } from "./plotting.js";

const HEIGHT = 210;
const MOST_GROWTH = 1.5;
const MOST_MARKS = 200;

export class Chart {
  /**
   * `names` are curves, `labels` how people call them, `constants` are horizontal lines by name.
   * The page calls `setAxis`, `update` with new rounds, `setMarks`; and `close`.
   */
  constructor(job, { title, names, labels = {}, constants = {}, note = "", range = null }) {
    Object.assign(this, { job, names, labels, constants, title, marks: [], range: null, hidden: new Set(), axis: "env-steps", yRange: range, rounds: [], xs: [], columns: {} });
    this.legend = h("div", { class: "legend" });
    this.plotPlace = h("div", { class: "plot", tabindex: "0", role: "img", "aria-label": title, onkeydown: (event) => this.key(event) });
    this.values = h("span", { class: "quiet" });
    this.reset = h("button", { type: "button", class: "small", hidden: true, onclick: () => this.zoom(null) }, "Whole run");
    this.element = h("figure", { class: "card" },
      h("div", { class: "top" }, h("h2", {}, title), note && h("span", { class: "quiet" }, note), this.values, this.reset), this.legend, this.plotPlace);
    this.seen = new IntersectionObserver((entries) => { if (entries.some((each) => each.isIntersecting)) this.appear(); }, { rootMargin: "200px" });
    this.seen.observe(this.element);
    this.sized = new ResizeObserver(() => this.plot && this.plot.setSize({ width: this.plotPlace.clientWidth, height: HEIGHT }));
    this.sized.observe(this.plotPlace);
    this.themed = () => this.redraw();
    document.addEventListener("themed", this.themed);
    this.drawLegend();
  }

  close() {
    this.seen.disconnect();
    this.sized.disconnect();
    document.removeEventListener("themed", this.themed);
    clearTimeout(this.later);
    this.plot?.destroy();
    this.plot = null;
    this.closed = true;
  }

  async appear() {
    if (this.appeared) return;
    this.appeared = true;
    await loadLibrary();
    await this.load();
  }

  setAxis(axis) {
    if (this.axis === axis && this.appeared) return;
    Object.assign(this, { axis, range: null });
    if (this.appeared) this.load();
  }

  setNames(names, labels = this.labels) {
    Object.assign(this, { names, labels });
    this.drawLegend();
    if (this.appeared) this.load();
  }

  /** A horizontal line that is known only now. */
  setConstant(name, value) {
    if (value === null || value === undefined || this.constants[name] === value) return;
    this.constants = { [name]: value };
    this.drawLegend();
    this.redraw();
  }

  setMarks(marks) {
    this.marks = marks;
    this.plot?.redraw(false);
  }

  async load() {
    const turn = this.turn = (this.turn || 0) + 1;
    const query = { name: this.names, x: this.axis, points: Math.max(200, Math.min(2 * this.plotPlace.clientWidth, 2000)) };
    if (this.range) Object.assign(query, { low: this.range[0], high: this.range[1] });
    let found;
    try {
      found = await get(pathOf(this.job, "/series"), query);
    } catch (error) {
      if (!this.closed) this.values.textContent = error.message;
      return;
    }
    if (turn !== this.turn || this.closed) return;
    Object.assign(this, { rounds: found.rounds, xs: found.x, columns: found.columns, loaded: found.rounds.length, total: found.total });
    this.redraw();
  }

  get shownNames() {
    return this.names.filter((name) => name in this.columns);
  }

  data() {
    const constants = Object.values(this.constants).map((value) => this.xs.map(() => value));
    return [this.xs, ...this.names.map((name) => this.columns[name] || this.xs.map(() => null)), ...constants];
  }

  /** New rounds, as the stream brings them. */
  update(events) {
    if (!this.plot && !this.appeared) return;
    this.total = Math.max(this.total || 0, ...events.flatMap((event) => event.rows.map((row) => row.round + 1)));
    if (this.range) return; // the finer curves of a zoomed range stay as they are
    let late = this.axis === "usd";
    for (const { round, values } of events.flatMap((event) => event.rows)) {
      const last = this.rounds.length ? this.rounds[this.rounds.length - 1] : -1;
      const at = round > last ? this.rounds.length : this.rounds.lastIndexOf(round);
      const x = { rounds: round + 1, "env-steps": values.env_steps, seconds: values.seconds }[this.axis];
      if (at < 0 || (round > last && x === undefined)) { late ||= this.names.some((name) => name in values); continue; }
      if (round > last) { this.rounds.push(round); this.xs.push(x); }
      for (const name of this.names) {
        if (name in values && !(name in this.columns)) this.columns[name] = [];
        const column = this.columns[name];
        if (!column) continue;
        while (column.length < this.rounds.length) column.push(null);
        if (name in values) column[at] = values[name];
      }
    }
    if (late || this.rounds.length > MOST_GROWTH * (this.loaded || 200) + 200) this.loadSoon();
    this.frame ??= requestAnimationFrame(() => { this.frame = null; if (!this.closed) this.plot ? this.refresh() : this.redraw(); });
  }

  loadSoon() {
    this.later ??= setTimeout(() => { this.later = null; this.load(); }, 1000);
  }

  refresh() {
    this.plot.setData(this.data());
    this.tell();
  }

  zoom(range) {
    this.range = range;
    this.reset.hidden = !range;
    this.load();
  }

  select(low, high) {
    this.plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    if (high > low) this.zoom([low, high]);
  }

  redraw() {
    if (!this.appeared || !window.uPlot || this.closed) return;
    this.plot?.destroy();
    const options = baseOptions(this.plotPlace.clientWidth || 400, HEIGHT, { select: (low, high) => this.select(low, high) });
    const series = this.names.map((name, index) => ({
      label: this.labels[name] || name, stroke: colour(index), dash: dashes(index), width: 1.5, spanGaps: true, show: !this.hidden.has(name),
      points: { show: (this.columns[name] || []).filter((each) => each !== null).length < 60, size: 4 },
    }));
    const constants = Object.keys(this.constants).map((name, index) => ({ label: name, stroke: cssValue("--quiet"), dash: dashes(index + 1), width: 1.2, points: { show: false } }));
    options.series = [{}, ...series, ...constants];
    options.hooks.draw = [(plot) => {
      const marks = this.marks.slice(-MOST_MARKS);
      drawMarks(plot, marks, marks.map((mark) => this.xs[this.rounds.findIndex((round) => round >= mark.round)]));
    }];
    options.hooks.setCursor = [(plot) => this.point(plot.cursor.idx)];
    if (this.yRange) options.scales.y = { range: this.yRange };
    if (this.range) options.scales.x.range = [this.range[0], this.range[1]];
    replace(this.plotPlace);
    this.plot = new window.uPlot(options, this.data(), this.plotPlace);
    if (!this.shownNames.length) this.plotPlace.append(h("span", { class: "empty" }, "nothing recorded yet"));
    this.tell();
  }

  drawLegend() {
    replace(this.legend, this.names.slice(0, 24).map((name, index) => h("button", { type: "button", "aria-pressed": String(!this.hidden.has(name)),
      title: this.labels[name] || name, onclick: (event) => this.toggle(event.currentTarget, name, index) }, sample(index), h("span", {}, this.labels[name] || name), h("b", {}))),
    Object.keys(this.constants).map((name) => h("span", { class: "quiet" }, "┄ ", name, " ", number(this.constants[name]))));
  }

  toggle(button, name, index) {
    if (this.hidden.has(name)) this.hidden.delete(name);
    else this.hidden.add(name);
    button.setAttribute("aria-pressed", String(!this.hidden.has(name)));
    this.plot?.setSeries(index + 1, { show: !this.hidden.has(name) });
  }

  /** Show the values at an index, or the last ones. */
  point(index) {
    const buttons = this.legend.querySelectorAll("button b");
    this.names.slice(0, 24).forEach((name, at) => {
      const column = this.columns[name] || [];
      let where = index ?? column.length - 1;
      while (where > 0 && (column[where] === null || column[where] === undefined)) where -= 1;
      buttons[at].textContent = number(column[where], 4);
    });
    this.values.textContent = index === null || index === undefined ? "" : `${{ rounds: "round", "env-steps": "env steps", seconds: "seconds", usd: "US dollars" }[this.axis]} ${number(this.xs[index], 5)}`;
  }

  tell() {
    this.point(null);
    const told = this.shownNames.map((name) => {
      const known = this.columns[name].filter((each) => each !== null && each !== undefined);
      return known.length ? `${this.labels[name] || name}: last ${number(known[known.length - 1])}, lowest ${number(Math.min(...known))}, highest ${number(Math.max(...known))}` : "";
    });
    const marks = this.marks.length ? `; ${this.marks.length} marks of faults and recoveries` : "";
    this.plotPlace.setAttribute("aria-label", `${this.title}. ${told.filter(Boolean).join("; ") || "nothing recorded yet"}${marks}. Arrow keys read values, plus and minus zoom, 0 shows all.`);
  }

  key(event) {
    if (!this.plot || !this.xs.length) return;
    const [low, high] = [this.plot.scales.x.min, this.plot.scales.x.max];
    const [middle, width] = [(low + high) / 2, high - low];
    const now = this.plot.cursor.idx ?? this.xs.length - 1;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) {
      const at = Math.max(0, Math.min(this.xs.length - 1, now + step));
      this.plot.setCursor({ left: this.plot.valToPos(this.xs[at], "x"), top: 10 });
    } else if (event.key === "+" || event.key === "=") this.zoom([middle - width / 4, middle + width / 4]);
    else if (event.key === "-" && this.range) this.zoom([middle - width, middle + width]);
    else if ((event.key === "0" || event.key === "Escape") && this.range) this.zoom(null);
    else return;
    event.preventDefault();
  }
}
