// The page of all jobs: live, to be filtered and sorted; cancel, resume, submit, compare.

import { Stream } from "./api.js";
import { actions, askSubmit, problems } from "./dialogs.js";
import { clock, duration, fixed, h, number, percent, replace, stateBadge } from "./dom.js";

const STATES = ["RUNNING", "PENDING", "SUCCEEDED", "FAILED", "CANCELLED", "INTERRUPTED"];
const COLUMNS = [
  { id: "job", title: "Job", of: (job) => job.job, cell: (job) => h("a", { href: `#/job/${encodeURIComponent(job.job)}` }, job.job) },
  { id: "state", title: "State", of: (job) => STATES.indexOf(job.state), cell: (job) => stateBadge(job.state) },
  { id: "rounds", title: "Rounds", right: true, of: (job) => job.rounds, cell: (job) => number(job.rounds) },
  { id: "steps", title: "Env steps", right: true, of: (job) => job.env_steps, cell: (job) => number(job.env_steps) },
  { id: "return", title: "Return", right: true, of: (job) => job.greedy_return, cell: (job) => fixed(job.greedy_return) },
  { id: "random", title: "Random", right: true, wide: true, of: (job) => job.random_return, cell: (job) => fixed(job.random_return) },
  { id: "won", title: "Won", right: true, wide: true, of: (job) => job.win_rate, cell: (job) => percent(job.win_rate) },
  { id: "env", title: "Environment", wide: true, of: (job) => job.env, cell: (job) => job.env },
  { id: "algorithm", title: "Algorithm", wide: true, of: (job) => job.algorithm, cell: (job) => job.algorithm },
  { id: "accepted", title: "Accepted", wide: true, of: (job) => job.accepted_s, cell: (job) => clock(job.accepted_s) },
  { id: "took", title: "Time", right: true, wide: true, of: took, cell: (job) => duration(took(job)) },
];
const MOST_ROWS = 500;

function took(job) {
  return (job.ended_s || Date.now() / 1000) - job.accepted_s;
}

export function open(main, { about, tellLink }) {
  let jobs = [];
  let sort = { id: "accepted", down: true };
  const chosen = new Set();
  const off = new Set();
  const rows = new Map();

  const filter = h("input", { type: "search", id: "filter", placeholder: "Filter by id, environment, algorithm", oninput: draw });
  const chips = h("div", { class: "row", role: "group", "aria-label": "States shown" }, STATES.map((state) =>
    h("button", { type: "button", class: "chip", "aria-pressed": "true", onclick: (event) => toggle(event.currentTarget, state) }, state.toLowerCase())));
  const compare = h("a", { class: "button", hidden: true }, "Compare");
  const heads = COLUMNS.map((column) => h("th", { scope: "col", class: classes(column) },
    h("button", { type: "button", onclick: () => order(column) }, column.title)));
  const body = h("tbody");
  const notes = h("div");
  const count = h("p", { class: "quiet", role: "status" });
  replace(main,
    h("div", { class: "row head" }, h("h1", {}, "Jobs"),
      about.writable && h("button", { type: "button", class: "primary", onclick: askSubmit }, "Submit a job …"), compare),
    h("div", { class: "row" }, h("label", { for: "filter", class: "hidden" }, "Filter"), filter, chips),
    notes,
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of jobs" }, h("table", { class: "jobs" },
      h("caption", { class: "hidden" }, "Jobs"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, h("span", { class: "hidden" }, "Choose")), heads, h("th", { scope: "col" }, h("span", { class: "hidden" }, "Actions")))), body)),
    count);

  function classes(column) {
    return [column.right && "right", column.wide && "wide"].filter(Boolean).join(" ") || null;
  }

  function toggle(button, state) {
    if (off.has(state)) off.delete(state);
    else off.add(state);
    button.setAttribute("aria-pressed", String(!off.has(state)));
    draw();
  }

  function order(column) {
    sort = { id: column.id, down: sort.id === column.id ? !sort.down : Boolean(column.right) || column.id === "accepted" };
    draw();
  }

  function choose(job, on) {
    if (on) chosen.add(job);
    else chosen.delete(job);
    const query = new URLSearchParams([...chosen].map((each) => ["job", each]));
    compare.hidden = chosen.size === 0;
    compare.href = `#/compare?${query}`;
    compare.textContent = `Compare ${chosen.size}`;
  }

  function row(job) {
    const known = rows.get(job.job);
    const version = JSON.stringify(job) + (job.ended_s ? "" : Math.floor(Date.now() / 1000));
    if (known?.version === version) return known.element;
    const focused = known?.element.contains(document.activeElement);
    const box = h("input", { type: "checkbox", "aria-label": `Choose ${job.job}`, checked: chosen.has(job.job), onchange: (event) => choose(job.job, event.target.checked) });
    const element = h("tr", { title: job.reason }, h("td", {}, box),
      COLUMNS.map((column, index) => h(index ? "td" : "th", { scope: index ? null : "row", class: classes(column) }, column.cell(job))),
      h("td", { class: "right" }, actions(job, about.writable)));
    if (focused && known.state === job.state) { // keep the element that the keyboard is on
      COLUMNS.slice(1).forEach((column, index) => known.element.children[index + 2].replaceChildren(column.cell(job)));
      known.version = version;
      return known.element;
    }
    rows.set(job.job, { version, element, state: job.state });
    return element;
  }

  function draw() {
    const wanted = filter.value.toLowerCase();
    const shown = jobs.filter((job) => !off.has(job.state) && [job.job, job.env, job.algorithm].some((each) => each.toLowerCase().includes(wanted)));
    const column = COLUMNS.find((each) => each.id === sort.id);
    const sign = sort.down ? -1 : 1;
    shown.sort((a, b) => {
      const [one, other] = [column.of(a), column.of(b)];
      if (one === other) return a.job < b.job ? -1 : 1;
      if (one === null || one === undefined) return 1;
      if (other === null || other === undefined) return -1;
      return one < other ? -sign : sign;
    });
    heads.forEach((head, index) => {
      if (COLUMNS[index].id === sort.id) head.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const elements = shown.slice(0, MOST_ROWS).map(row);
    if (elements.length !== body.children.length || elements.some((each, index) => body.children[index] !== each)) replace(body, elements);
    const cut = shown.length > MOST_ROWS ? `, the first ${MOST_ROWS} shown` : "";
    count.textContent = jobs.length ? `${number(shown.length)} of ${number(jobs.length)} jobs${cut}` : "No job yet.";
  }

  const stream = new Stream("events", {
    jobs: (data) => {
      jobs = data.jobs;
      tellLink(data.unreachable);
      problems(notes, data.problems);
      draw();
    },
  }, tellLink);
  return { close: () => stream.close() };
}
