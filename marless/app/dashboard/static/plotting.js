// What charts share: the library, which is loaded once, their look, and the marks of faults.

import { cssValue, dashes, h, number } from "./dom.js";

let library = null;

export function loadLibrary() {
  library ??= new Promise((ready, failed) => {
    const style = h("link", { rel: "stylesheet", href: "vendor/uPlot.min.css" });
    const script = h("script", { src: "vendor/uPlot.iife.min.js", onload: () => ready(window.uPlot), onerror: () => failed(new Error("uPlot is missing")) });
    document.head.append(style, script);
  });
  return library;
}

export function sample(index) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("width", "22");
  svg.setAttribute("height", "8");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  const values = { x1: 0, x2: 22, y1: 4, y2: 4, stroke: `var(--line-${index % 8})`, "stroke-width": 2, "stroke-dasharray": dashes(index).join(" ") };
  Object.entries(values).forEach(([name, value]) => line.setAttribute(name, value));
  svg.append(line);
  return svg;
}

/** The look shared by all charts. */
export function baseOptions(width, height, { label, xFormat = number, select }) {
  const axis = { stroke: cssValue("--quiet"), grid: { stroke: cssValue("--grid"), width: 1 }, ticks: { stroke: cssValue("--grid"), width: 1 }, font: "11px system-ui, sans-serif" };
  return {
    width, height, legend: { show: false }, scales: { x: { time: false } },
    axes: [{ ...axis, size: 30, values: (_plot, splits) => splits.map((each) => xFormat(each, 3)) },
      { ...axis, size: 56, values: (_plot, splits) => splits.map((each) => number(each, 3)) }],
    cursor: { drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
    hooks: { setSelect: [(plot) => select && plot.select.width > 4 && select(plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x"))] },
    label,
  };
}

/** A line with a triangle for each fault, and one with a ring for each recovery; `places` are of the marks, on the axis. */
export function drawMarks(plot, marks, places) {
  const { ctx, bbox } = plot;
  const size = 4 * devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = cssValue("--warn");
  for (const [number, mark] of marks.entries()) {
    const x = plot.valToPos(places[number] ?? -Infinity, "x", true);
    if (!(x >= bbox.left) || x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.setLineDash(mark.kind === "fault" ? [] : [3, 3]);
    ctx.globalAlpha = 0.55;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.globalAlpha = 1;
    ctx.setLineDash([]);
    ctx.beginPath();
    if (mark.kind === "fault") { ctx.moveTo(x - size, bbox.top); ctx.lineTo(x + size, bbox.top); ctx.lineTo(x, bbox.top + 1.6 * size); ctx.fill(); }
    else { ctx.arc(x, bbox.top + size, size, 0, 2 * Math.PI); ctx.stroke(); }
  }
  ctx.restore();
}
