// Versions, checkpoints and other files of a job, to be saved; its settings; and a film of an episode.

import { blob, get, pathOf, post } from "./api.js";
import { bytes, h, number, replace } from "./dom.js";

const MOST_VERSIONS = 60;

export class Files {
  constructor(job, found) {
    this.job = job;
    this.list = h("div");
    this.film = h("div", { class: "film" });
    this.button = h("button", { type: "button", onclick: () => this.play() }, "Film an episode");
    this.filmNote = h("span", { class: "quiet", role: "status" });
    const files = h("details", { ontoggle: (event) => event.currentTarget.open && this.load() }, h("summary", {}, "Checkpoints and other files"), this.list);
    this.versions = h("p");
    this.showVersions(found.versions);
    this.element = h("section", { class: "card full", "aria-label": "Policies and files" }, h("h2", {}, "Policies and files"),
      h("div", { class: "row" }, this.button, this.filmNote), this.film,
      this.versions,
      files,
      h("details", {}, h("summary", {}, "Settings"), h("pre", { tabindex: "0", "aria-label": "The job's settings as YAML" }, found.spec)));
  }

  showVersions(found) {
    const versions = Object.entries(found);
    if (!versions.length) return;
    const told = versions.slice(0, MOST_VERSIONS).map(([policy, version]) => `${policy} ${number(version)}`).join(" · ");
    const more = versions.length - MOST_VERSIONS;
    replace(this.versions, h("span", { class: "quiet" }, "Newest versions: "), told, more > 0 ? ` · and ${number(more)} more` : "");
  }

  async load() {
    try {
      const { files } = await get(pathOf(this.job, "/files"));
      replace(this.list, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of files" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "File"), h("th", { scope: "col", class: "right" }, "Size"), h("th", { scope: "col" }, h("span", { class: "hidden" }, "Save")))),
        h("tbody", {}, files.slice(0, 2000).map((file) => h("tr", {}, h("th", { scope: "row" }, file.path), h("td", { class: "right" }, bytes(file.bytes)),
          h("td", {}, h("button", { type: "button", class: "small", "aria-label": `Save ${file.path}`, onclick: (event) => this.save(event.currentTarget, file.path) }, "Save"))))))));
    } catch (error) {
      replace(this.list, h("p", { class: "problem" }, error.message));
    }
  }

  async save(button, path) {
    button.disabled = true;
    try {
      const url = URL.createObjectURL(await blob(pathOf(this.job, "/file"), { path }));
      const link = h("a", { href: url, download: `${this.job}-${path.replaceAll("/", "-")}` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(url), 60000);
    } catch (error) {
      button.after(h("span", { class: "problem" }, error.message));
    }
    button.disabled = false;
  }

  async play() {
    this.button.disabled = true;
    this.filmNote.textContent = "playing and drawing an episode …";
    try {
      const picture = await (await post(pathOf(this.job, "/film"), { seed: this.seed = (this.seed ?? -1) + 1 })).blob();
      if (this.url) URL.revokeObjectURL(this.url);
      this.url = URL.createObjectURL(picture);
      replace(this.film, h("img", { src: this.url, alt: `One episode of ${this.job} with seed ${this.seed}` }));
      this.filmNote.textContent = `seed ${this.seed}`;
      this.button.textContent = "Film another";
    } catch (error) {
      this.filmNote.textContent = error.message;
    }
    this.button.disabled = false;
  }
}
