// The frame of all pages: which one is shown, the theme, and whether the connection stands.

import { get, keepToken, takeToken } from "./api.js";
import { h, replace } from "./dom.js";

const PAGES = {
  jobs: () => import("./jobs.js"),
  job: () => import("./job.js"),
  compare: () => import("./compare.js"),
  fleet: () => import("./fleet.js"),
};
const main = document.getElementById("main");
const PRELOAD_MS = 500;
let shown = null;
let turn = 0;

/** Say on every page that data are old, and why; "" once they are not. */
export function tellLink(sentence) {
  const place = document.getElementById("link");
  replace(place, sentence ? h("span", { class: "gone" }, "⚠ ", sentence) : "");
  document.body.classList.toggle("stale", Boolean(sentence));
}

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, ...rest] = path.split("/");
  return { page: page in PAGES ? page : "jobs", name: decodeURIComponent(rest.join("/")), query: new URLSearchParams(query || "") };
}

async function show() {
  if (location.hash === "#main") return;
  takeToken();
  const number = ++turn;
  const { page, name, query } = route();
  shown?.close?.();
  shown = null;
  tellLink("");
  for (const link of document.querySelectorAll("nav a")) {
    const current = link.dataset.page === page || (page === "job" && link.dataset.page === "jobs");
    if (current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  try {
    const module = await PAGES[page]();
    const about = await get("about");
    if (number !== turn) return;
    document.getElementById("place").textContent = about.place;
    document.title = name ? `${name} · marless` : `${page} · marless`;
    shown = module.open(main, { name, query, about, tellLink });
    if (page === "jobs") setTimeout(() => PAGES.job(), PRELOAD_MS); // likely next
  } catch (error) {
    if (number !== turn || error.status === 401) return;
    replace(main, h("p", { class: "problem", role: "alert" }, error.message),
      h("button", { type: "button", onclick: show }, "Try again"));
    if (error.status === 0) setTimeout(() => number === turn && show(), 1000);
  }
}

function askForToken() {
  shown?.close?.();
  shown = null;
  turn += 1;
  const field = h("input", { type: "password", id: "token", autocomplete: "off", size: 40 });
  replace(main, h("form", { class: "card narrow", onsubmit: (event) => { event.preventDefault(); keepToken(field.value); show(); } },
    h("h1", {}, "Token needed"),
    h("p", {}, "Open the address that marless dashboard has printed, or enter the text after token= in it."),
    h("label", { for: "token" }, "Token"), field, h("button", { type: "submit" }, "Open")));
  field.focus();
}

function setTheme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  const button = document.getElementById("theme");
  button.textContent = { light: "Light", dark: "Dark" }[name] || "Auto";
  button.setAttribute("aria-label", `Theme: ${button.textContent}`);
  document.dispatchEvent(new CustomEvent("themed"));
}

document.getElementById("theme").addEventListener("click", () => {
  const order = ["", "light", "dark"];
  const next = order[(order.indexOf(localStorage.getItem("marless-theme") || "") + 1) % order.length];
  localStorage.setItem("marless-theme", next);
  setTheme(next);
});
document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
document.addEventListener("unauthorised", askForToken);
window.addEventListener("hashchange", show);
setTheme(localStorage.getItem("marless-theme") || "");
show();
