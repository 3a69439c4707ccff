// Makes elements and formats values. Text enters the page as text nodes alone, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else if (name in element && !name.includes("-") && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

/** An HTML element; children that are strings become text. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function s(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, String(value));
  }
  element.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined));
  return element;
}

export function replace(parent, ...children) {
  parent.replaceChildren(...children.flat(Infinity).filter(Boolean));
}

const grouped = new Intl.NumberFormat("en");
const natural = new Intl.Collator("en", { numeric: true });

/** The order of names for people: agent_2 before agent_10. */
export function byName(one, other) {
  return natural.compare(one, other);
}

/** A number in at most `digits` significant digits. */
export function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  if (Number.isInteger(value)) return grouped.format(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e9)) return value.toExponential(digits - 1);
  return value.toLocaleString("en", { maximumSignificantDigits: digits }).slice(0, 24);
}

export function fixed(value, digits = 2) {
  return value === null || value === undefined ? "" : value.toFixed(digits);
}

export function percent(value) {
  return value === null || value === undefined ? "" : `${(100 * value).toFixed(0)} %`;
}

export function usd(value) {
  if (value === null || value === undefined) return "";
  return `$${value < 0.01 ? value.toPrecision(3) : value.toFixed(value < 1 ? 4 : 2)}`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "";
  const units = ["B", "kB", "MB", "GB", "TB"];
  const step = Math.min(Math.floor(Math.log10(Math.max(value, 1)) / 3), units.length - 1);
  return `${(value / 10 ** (3 * step)).toFixed(step && value / 10 ** (3 * step) < 10 ? 1 : 0)} ${units[step]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const whole = Math.max(Math.round(seconds), 0);
  const pad = (value) => String(value).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours}:${pad(minutes)}:${pad(whole % 60)}` : `${minutes}:${pad(whole % 60)}`;
}

export function clock(seconds) {
  if (!seconds) return "";
  const when = new Date(1000 * seconds);
  const pad = (value) => String(value).padStart(2, "0");
  const day = `${when.getFullYear()}-${pad(when.getMonth() + 1)}-${pad(when.getDate())}`;
  return `${day} ${pad(when.getHours())}:${pad(when.getMinutes())}`;
}

/** A value of a CSS variable. */
export function cssValue(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 5], [1, 4], [12, 4], [6, 2, 2, 2]];

/** The dashes of the n-th line; of the ninth and later ones, colour and dashes together are new. */
export function dashes(index) {
  return DASHES[(index + Math.floor(index / 8)) % 8];
}

/** The colour of the n-th line. */
export function colour(index) {
  return cssValue(`--line-${index % 8}`);
}

/** A state with its sign: it is not told by colour alone. */
export function stateBadge(state) {
  const signs = { RUNNING: "▶", PENDING: "…", SUCCEEDED: "✓", FAILED: "✕", CANCELLED: "■", INTERRUPTED: "‖" };
  return h("span", { class: `state state-${String(state).toLowerCase()}` },
    h("span", { "aria-hidden": "true" }, signs[state] || "?"), " ", String(state).toLowerCase());
}
