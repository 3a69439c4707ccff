// Return against cost, a point for each job; jobs that no other one beats are joined by a line.

import { h, number, s, usd } from "./dom.js";

const [WIDTH, HEIGHT, LEFT, BOTTOM, EDGE, TOP] = [520, 300, 56, 34, 12, 24];
const SHAPES = ["circle", "square", "diamond", "triangle"];

export function scatter(runs, numbers) {
  const known = runs.filter((run) => run.cost_usd !== null);
  if (!known.length) return h("p", { class: "quiet" }, "Costs are not known yet.");
  const [costs, values] = [known.map((run) => run.cost_usd), known.map((run) => run.value)];
  const x = scale(costs, LEFT + EDGE, WIDTH - EDGE);
  const y = scale(values, HEIGHT - BOTTOM - EDGE, TOP);
  const best = known.filter((run) => run.undominated).sort((a, b) => a.cost_usd - b.cost_usd);
  const line = best.length > 1 ? s("polyline", { points: best.map((run) => `${x.at(run.cost_usd)},${y.at(run.value)}`).join(" "), fill: "none", stroke: "var(--quiet)", "stroke-dasharray": "4 3" }) : null;
  const ticks = [...x.ticks.map((each) => s("text", { class: "axis", x: x.at(each), y: HEIGHT - 18, "text-anchor": "middle" }, usd(each))), ...y.ticks.map((each) => s("text", { class: "axis", x: LEFT - 4, y: y.at(each) + 4, "text-anchor": "end" }, number(each, 3)))];
  const grid = [...x.ticks.map((each) => s("line", { x1: x.at(each), x2: x.at(each), y1: TOP, y2: HEIGHT - BOTTOM, stroke: "var(--grid)" })), ...y.ticks.map((each) => s("line", { x1: LEFT, x2: WIDTH - EDGE, y1: y.at(each), y2: y.at(each), stroke: "var(--grid)" }))];
  const points = known.map((run) => point(run, x.at(run.cost_usd), y.at(run.value), numbers.get(run.group) ?? 0));
  return s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: "100%", role: "img", "aria-label": `Return against cost of ${known.length} jobs; ${best.map((run) => run.run).join(", ")} are beaten by none. The table has the numbers.` },
    grid, ticks, line, points, s("text", { class: "axis", x: WIDTH - EDGE, y: HEIGHT - 3, "text-anchor": "end" }, "cost, billed"), s("text", { class: "axis", x: 4, y: 10 }, "last value"));
}

function scale(values, from, to) {
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (low === high) [low, high] = [low - Math.abs(low || 1) / 10, high + Math.abs(high || 1) / 10];
  const at = (value) => from + ((to - from) * (value - low)) / (high - low);
  return { at, ticks: [0, 1, 2, 3].map((part) => low + ((high - low) * part) / 3) };
}

function point(run, x, y, group) {
  const look = { fill: `var(--line-${group % 8})`, stroke: run.undominated ? "var(--ink)" : "none", "stroke-width": 1.5 };
  const title = s("title", {}, `${run.run} (${run.group}): ${number(run.value)} for ${usd(run.cost_usd)}`);
  switch (SHAPES[group % SHAPES.length]) {
    case "square": return s("rect", { x: x - 4.5, y: y - 4.5, width: 9, height: 9, ...look }, title);
    case "diamond": return s("path", { d: `M${x},${y - 6.5}l6.5,6.5l-6.5,6.5l-6.5,-6.5z`, ...look }, title);
    case "triangle": return s("path", { d: `M${x},${y - 6}l6,10.5h-12z`, ...look }, title);
    default: return s("circle", { cx: x, cy: y, r: 5, ...look }, title);
  }
}
