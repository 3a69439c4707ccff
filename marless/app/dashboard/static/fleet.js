// The fleet: services, workers by launcher and host, memory, and machines that are drained.

import { get } from "./api.js";
import { problems } from "./dialogs.js";
import { bytes, clock, duration, h, number, replace } from "./dom.js";

const EVERY_MS = 2000;

export function open(main, { about, tellLink }) {
  let later = null;
  let closed = false;
  const notes = h("div");
  const services = h("div", { class: "row", "aria-label": "Services", role: "group" });
  const facts = h("dl", { class: "facts" });
  const hosts = h("div", { class: "grid" });
  const machines = h("div", { class: "spaced" });
  replace(main, h("h1", {}, "Fleet"), about.writable ? null : h("p", { class: "quiet" }, "As the newest records of this folder show it; no service is asked."), notes, services, facts, hosts, machines);

  async function load() {
    if (closed) return;
    if (!document.hidden) {
      try {
        const found = await get("fleet");
        if (closed) return;
        tellLink("");
        draw(found);
      } catch (error) {
        tellLink(error.message);
      }
    }
    later = setTimeout(load, EVERY_MS);
  }

  function draw(found) {
    problems(notes, found.problems);
    replace(services, found.services.map((each) => h("span", { class: `chip${each.serving ? "" : " problem"}`, title: each.address }, each.serving ? "● " : "○ ", each.name.replaceAll("_", " "), each.serving ? "" : " is not serving")));
    const busy = found.workers.filter((each) => each.busy).length;
    const memory = found.workers.reduce((sum, each) => sum + (each.memory_bytes || 0), 0);
    const told = [["Workers", number(found.workers.length)], ["Busy now", number(busy)], ["Waiting for a worker", found.queued === null ? "" : number(found.queued)], ["Memory", bytes(memory)], ["Drained", number(found.machines.filter((each) => each.released).length)]];
    replace(facts, told.filter(([, value]) => value).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    const groups = new Map();
    for (const worker of found.workers) {
      const key = JSON.stringify([worker.launcher || "unknown launcher", worker.machine || worker.host || "unknown host"]);
      groups.set(key, [...(groups.get(key) || []), worker]);
    }
    const most = Math.max(...found.workers.map((each) => each.memory_bytes || 0), 1);
    replace(hosts, [...groups].map(([key, workers]) => host(JSON.parse(key), workers, most)));
    if (!groups.size) replace(hosts, h("p", { class: "quiet" }, "No worker has run yet."));
    replace(machines, found.machines.length ? machineTable(found.machines) : null);
  }

  load();
  return { close: () => { closed = true; clearTimeout(later); } };
}

function host([launcher, machine], workers, most) {
  return h("section", { class: "card", "aria-label": `${launcher} on ${machine}` }, h("h2", {}, `${launcher} · ${machine}`), h("p", { class: "quiet" }, `${number(workers.length)} workers`),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table of workers on ${machine}` }, h("table", {}, h("thead", {}, h("tr", {}, ["Worker", "Now", "Invocations", "Memory", "Last", "Jobs"].map((each) => h("th", { scope: "col" }, each)))),
      h("tbody", {}, workers.slice(0, 200).map((each) => h("tr", {}, h("th", { scope: "row" }, each.worker), h("td", {}, each.busy === undefined ? "" : each.busy ? "● busy" : "○ idle"), h("td", {}, number(each.served ?? each.invocations)),
        h("td", {}, each.memory_bytes ? [meter(each.memory_bytes / most), " ", bytes(each.memory_bytes)] : ""), h("td", {}, clock(each.last_s)), h("td", {}, (each.jobs || []).join(", "))))))));
}

function meter(part) {
  return h("span", { class: "meter", "aria-hidden": "true" }, h("i", { style: { width: `${Math.round(100 * part)}%` } }));
}

function machineTable(machines) {
  const state = (each) => (each.released ? "drained" : each.held ? "waits" : "in use");
  return h("section", { class: "card", "aria-label": "Machines" }, h("h2", {}, "Machines"), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of machines" }, h("table", {}, h("thead", {}, h("tr", {}, ["Machine", "Pool", "Launcher", "Type", "vCPUs", "$ per h", "Working", "Waiting", "State"].map((each) => h("th", { scope: "col" }, each)))),
    h("tbody", {}, machines.slice(0, 200).map((each) => h("tr", {}, h("th", { scope: "row" }, each.id), [each.pool, each.launcher, each.type, number(each.vcpus), number(each.usd_h), duration(each.work_s), duration(each.waiting_s), state(each)].map((cell) => h("td", {}, cell || ""))))))));
}
