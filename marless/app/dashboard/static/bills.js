// What a job costs by each accounting, beside its budget. The server prices rounds once this is in view.

import { get, pathOf } from "./api.js";
import { Chart } from "./chart.js";

const NAMES = ["cost/billed", "cost/paper", "cost/serverful", "cost/machines"];
const EVERY_MS = 1000;

export class Bills {
  constructor(job, adopt) {
    Object.assign(this, { job, about: null });
    this.chart = adopt(new Chart(job, { title: "Bills", names: NAMES, labels: Object.fromEntries(NAMES.map((each) => [each, each.slice(5)])), note: "US dollars" }));
    this.element = this.chart.element;
    this.progress = document.createElement("span");
    this.progress.className = "quiet";
    this.element.querySelector(".top").append(this.progress);
    this.seen = new IntersectionObserver((entries) => {
      if (entries.some((each) => each.isIntersecting)) { this.seen.disconnect(); this.ask(); }
    }, { rootMargin: "200px" });
    this.seen.observe(this.element);
  }

  close() {
    this.closed = true;
    this.seen.disconnect();
    clearTimeout(this.later);
  }

  async ask() {
    let found = null;
    try {
      found = await get(pathOf(this.job, "/bills"));
    } catch (error) {
      this.progress.textContent = error.message;
    }
    if (this.closed) return;
    if (found) {
      const before = this.about?.priced;
      this.about = found;
      this.progress.textContent = found.problem || (found.priced < found.rounds ? `priced ${found.priced} of ${found.rounds} rounds` : "");
      this.chart.setConstant(`budget (${found.accounting})`, found.budget_usd);
      if (found.priced !== before && this.chart.appeared) await this.chart.load();
    }
    this.asked = true;
    if (!found || (found.priced < found.rounds && !found.problem)) this.later = setTimeout(() => this.ask(), EVERY_MS);
    else this.later = null;
  }

  /** A round is new: its bill follows soon. */
  update() {
    if (this.asked && !this.later) this.later = setTimeout(() => this.ask(), EVERY_MS);
  }

  /** The cost so far by the job's own accounting; undefined if it is not computed. */
  total() {
    return this.about?.totals[`cost/${this.about.accounting}`];
  }
}
