// Dialogs that ask before something is done: cancel, resume, submit.

import { pathOf, post } from "./api.js";
import { h, replace } from "./dom.js";

/** Open a dialog; `act` is called when it is confirmed, and its error is shown in the dialog. */
export function ask({ title, body, verb, act }) {
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const confirm = h("button", { type: "submit", class: "primary" }, verb);
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" },
    h("form", { method: "dialog", onsubmit: submit },
      h("h2", { id: "dialog-title" }, title), body, problem,
      h("div", { class: "row end" }, h("button", { type: "button", onclick: () => dialog.close() }, "Back"), confirm)));

  async function submit(event) {
    event.preventDefault();
    confirm.disabled = true;
    try {
      await act();
      dialog.close();
    } catch (error) {
      problem.hidden = false;
      problem.textContent = error.message;
    }
    confirm.disabled = false;
  }

  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

export function askCancel(job) {
  ask({
    title: "Cancel job",
    body: h("p", {}, "Cancel ", h("b", {}, job), "? It ends after its present round. It can be resumed later."),
    verb: "Cancel job",
    act: () => post(pathOf(job, "/cancel")),
  });
}

export function askResume(job) {
  const rounds = h("input", { type: "number", min: "1", step: "1", id: "resume-rounds" });
  ask({
    title: "Resume job",
    body: h("div", {},
      h("p", {}, "Continue ", h("b", {}, job), " after its last recorded round?"),
      h("label", { for: "resume-rounds" }, "New stop.rounds (empty: as it is)"), rounds),
    verb: "Resume job",
    act: () => post(pathOf(job, "/resume"), rounds.value ? { stop: { rounds: Number(rounds.value) } } : {}),
  });
}

export function askSubmit() {
  const text = h("textarea", { id: "submit-text", rows: "14", spellcheck: "false", required: true,
    placeholder: "name: spread\nenv: {name: mpe/simple_spread}\nalgorithm: ippo\nstop: {rounds: 50}" });
  const id = h("input", { type: "text", id: "submit-id", pattern: "[a-z0-9]([a-z0-9\\-]{0,98}[a-z0-9])?" });
  const file = h("input", { type: "file", id: "submit-file", accept: ".yaml,.yml,.json",
    onchange: async () => { if (file.files[0]) text.value = await file.files[0].text(); } });
  ask({
    title: "Submit a job",
    body: h("div", { class: "fields" },
      h("label", { for: "submit-file" }, "Job file"), file,
      h("label", { for: "submit-text" }, "Its text"), text,
      h("label", { for: "submit-id" }, "Job id (empty: its name and the time)"), id),
    verb: "Submit",
    act: async () => {
      const job = await (await post("jobs", { text: text.value, job: id.value })).json();
      location.hash = `#/job/${encodeURIComponent(job.job)}`;
    },
  });
}

/** The actions that a job's state allows. */
export function actions(job, writable) {
  if (!writable) return [];
  const ended = ["SUCCEEDED", "FAILED", "CANCELLED"].includes(job.state);
  return ended
    ? [h("button", { type: "button", class: "small", "aria-label": `Resume ${job.job}`, onclick: () => askResume(job.job) }, "Resume")]
    : [h("button", { type: "button", class: "small", "aria-label": `Cancel ${job.job}`, onclick: () => askCancel(job.job) }, "Cancel")];
}

export function problems(parent, sentences) {
  replace(parent, sentences.map((each) => h("p", { class: "problem" }, "⚠ ", each)));
}
