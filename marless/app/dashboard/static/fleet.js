// The fleet: services, workers by launcher and host, memory, and machines that are drained.

import { get } from "./api.js";
import { problems } from "./dialogs.js";
import { bytes, clock, duration, h, number, replace } from "./dom.js";

const EVERY_MS = 1000;
const MOST_ROWS = 200;

export function open(main, { about, tellLink }) {
  let later = null;
  let closed = false;
  const notes = h("div");
  const services = h("div", { class: "row", "aria-label": "Services", role: "group" });
  const facts = h("dl", { class: "facts" });
  const pools = h("div", { class: "spaced" });
  const hosts = h("div", { class: "grid" });
  const machines = h("div", { class: "spaced" });
  replace(main, h("h1", {}, "Fleet"), about.writable ? null : h("p", { class: "quiet" }, "As the newest records of this folder show it; no service is asked."), notes, services, facts, pools, hosts, machines);

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
    const memory = found.workers.reduce((sum, each) => sum + (each.memory_bytes || 0), 0);
    const drained = found.workers.filter((each) => each.drain).length;
    const told = [["Workers", number(found.workers.length)], ["Busy now", number(found.workers.filter((each) => each.busy).length)], ["Draining", number(drained)], ["Memory", bytes(memory)], ["Machines released", number(found.machines.filter((each) => each.released).length)]];
    replace(facts, told.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    replace(pools, found.pools.length ? poolTable(found.pools) : null);
    const groups = new Map();
    for (const worker of found.workers) {
      const key = JSON.stringify([worker.pool, worker.launcher || "unknown launcher", worker.host || worker.machine || "unknown host"]);
      groups.set(key, [...(groups.get(key) || []), worker]);
    }
    const most = Math.max(...found.workers.map((each) => each.memory_bytes || 0), 1);
    replace(hosts, [...groups].map(([key, workers]) => host(JSON.parse(key), workers, most)));
    if (!groups.size) replace(hosts, h("p", { class: "quiet" }, found.pools.length ? "No worker is connected." : "No worker has run yet."));
    replace(machines, found.machines.length ? machineTable(found.machines) : null);
  }

  load();
  return { close: () => { closed = true; clearTimeout(later); } };
}

function table(label, columns, rows) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, h("table", {}, h("thead", {}, h("tr", {}, columns.map((each) => h("th", { scope: "col" }, each)))),
    h("tbody", {}, rows.map(([first, ...cells]) => h("tr", {}, h("th", { scope: "row" }, first), cells.map((cell) => h("td", {}, cell ?? "")))))));
}

/** What each pool has, and may have: a pool starts workers up to its limit, where its launcher has room. */
function poolTable(pools) {
  return h("section", { class: "card", "aria-label": "Pools" }, h("h2", {}, "Pools"), table("Table of pools", ["Pool", "Launcher", "Workers", "Busy", "Starting", "Draining", "Most", "Room for more", "Tasks waiting", "Last start"],
    pools.map((each) => [each.name.replaceAll("_", " "), each.launcher, number(each.workers), number(each.busy), number(each.starting), number(each.draining), number(each.limit), each.room === null ? "not known" : number(each.room), number(each.queued), each.refused ? `⚠ ${each.refused}` : ""])));
}

function host([pool, launcher, machine], workers, most) {
  return h("section", { class: "card", "aria-label": `${pool} workers of ${launcher} on ${machine}` }, h("h2", {}, `${pool} · ${launcher} · ${machine}`), h("p", { class: "quiet" }, `${number(workers.length)} ${workers.length === 1 ? "worker" : "workers"}${workers.length > MOST_ROWS ? `; the first ${MOST_ROWS} are shown` : ""}`),
    table(`Table of ${pool} workers on ${machine}`, ["Worker", "Now", "Invocations", "Memory", "Last", "Jobs"], workers.slice(0, MOST_ROWS).map((each) => [each.worker, now(each), number(each.served ?? each.invocations),
      each.memory_bytes ? [meter(each.memory_bytes / most), " ", bytes(each.memory_bytes)] : "", clock(each.last_s), (each.jobs || []).join(", ")])));
}

function now(worker) {
  if (worker.busy === undefined) return "";
  if (worker.drain) return `◌ draining: ${worker.drain}`;
  return `${worker.busy ? "● busy" : "○ idle"}${worker.background ? ", evaluates" : ""}`;
}

function meter(part) {
  return h("span", { class: "meter", "aria-hidden": "true" }, h("i", { style: { width: `${Math.round(100 * part)}%` } }));
}

function machineTable(machines) {
  const state = (each) => (each.released ? "released" : each.draining ? "◌ draining" : each.held ? "waits" : "in use");
  return h("section", { class: "card", "aria-label": "Machines" }, h("h2", {}, "Machines"), table("Table of machines", ["Machine", "Pool", "Launcher", "Type", "vCPUs", "$ per h", "Workers", "Tasks", "Working", "Waiting", "State"],
    machines.slice(0, MOST_ROWS).map((each) => [each.id, each.pool, each.launcher, each.type, number(each.vcpus), number(each.usd_h), number(each.workers), number(each.tasks), duration(each.work_s), duration(each.waiting_s), state(each)])));
}
