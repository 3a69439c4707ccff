// A job's log, the newest thousand lines, by level and by a word.

import { h, replace } from "./dom.js";

const MOST = 1000;
const LEVELS = ["debug", "info", "warning", "error", "critical"];

export class Log {
  constructor() {
    this.lines = [];
    this.list = h("ol", { class: "log", role: "log", "aria-live": "off", "aria-label": "Lines of the log", tabindex: "0" });
    this.level = h("select", { id: "log-level", onchange: () => this.draw() }, ["info", "warning", "error"].map((each) => h("option", { value: each }, `${each} and worse`)));
    this.word = h("input", { type: "search", id: "log-word", placeholder: "containing …", oninput: () => this.draw() });
    this.element = h("section", { class: "card full", "aria-label": "Log" }, h("div", { class: "row" }, h("h2", {}, "Log"), h("label", { for: "log-level", class: "hidden" }, "Levels"), this.level, h("label", { for: "log-word", class: "hidden" }, "Filter the log"), this.word), this.list);
  }

  add(texts) {
    const fresh = texts.map(parsed);
    this.lines = [...this.lines, ...fresh].slice(-MOST);
    const below = this.list.scrollTop + this.list.clientHeight >= this.list.scrollHeight - 8;
    this.list.append(...fresh.filter((each) => this.matches(each)).map(item));
    while (this.list.children.length > MOST) this.list.firstChild.remove();
    if (below) this.list.scrollTop = this.list.scrollHeight;
  }

  draw() {
    replace(this.list, this.lines.filter((each) => this.matches(each)).map(item));
    this.list.scrollTop = this.list.scrollHeight;
  }

  matches(line) {
    const least = LEVELS.indexOf(this.level.value);
    return LEVELS.indexOf(line.level) >= least && line.text.toLowerCase().includes(this.word.value.toLowerCase());
  }
}

function parsed(text) {
  let fields = { event: text };
  try {
    const found = JSON.parse(text);
    if (found && typeof found === "object" && !Array.isArray(found)) fields = found;
  } catch { /* it is shown as it is */ }
  const { timestamp = "", level = "info", event = "", ...more } = fields;
  const rest = Object.entries(more).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`).join("  ");
  return { level: LEVELS.includes(level) ? level : "info", text: `${String(timestamp).slice(11, 23)}  ${level}  ${event}  ${rest}` };
}

function item(line) {
  return h("li", { class: line.level }, line.text);
}
