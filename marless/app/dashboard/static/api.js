// Calls the dashboard's server. The token is kept for this tab, and sent as a header: there are no cookies.

const KEY = "marless-token";

/** Take the token out of the address, where it must not stay for others to read. */
export function takeToken() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!found) return;
  keepToken(found);
  history.replaceState(null, "", "#/jobs");
}

export function keepToken(token) {
  sessionStorage.setItem(KEY, token.trim());
}

function headers(more) {
  return { Authorization: `Bearer ${sessionStorage.getItem(KEY) || ""}`, ...more };
}

export class ApiError extends Error {
  constructor(sentence, status) {
    super(sentence);
    this.status = status;
  }
}

async function checked(response) {
  if (response.ok) return response;
  let sentence = `the dashboard answers ${response.status}`;
  try {
    sentence = (await response.json()).error || sentence;
  } catch { /* it is no JSON: the status says enough */ }
  if (response.status === 401) document.dispatchEvent(new CustomEvent("unauthorised"));
  throw new ApiError(sentence, response.status);
}

async function call(path, options) {
  let response;
  try {
    response = await fetch(`api/${path}`, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("the dashboard does not answer; is it still running?", 0);
  }
  return checked(response);
}

export function pathOf(job, rest = "") {
  return `jobs/${encodeURIComponent(job)}${rest}`;
}

export async function get(path, query = {}, signal = undefined) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined) search.append(name, each);
    }
  }
  const text = search.toString();
  return (await call(text ? `${path}?${text}` : path, { headers: headers(), signal })).json();
}

export async function post(path, body = {}) {
  const options = { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body) };
  return call(path, options);
}

export async function blob(path, query) {
  const search = new URLSearchParams(query);
  return (await call(`${path}?${search}`, { headers: headers() })).blob();
}

const FIRST_MS = 200;
const LONGEST_MS = 3000;
const SILENT_MS = 25000;
const HIDDEN_MS = 10000;

/**
 * Follow a stream of server-sent events until `close` is called. After a break it goes on where it was, by the id of
 * the last event. A hidden tab closes its stream, because a browser opens few connections to one host.
 */
export class Stream {
  constructor(path, handlers, told) {
    Object.assign(this, { path, handlers, told, id: "", closed: false, pause: FIRST_MS });
    this.onvisible = () => this.visible();
    document.addEventListener("visibilitychange", this.onvisible);
    this.run();
  }

  close() {
    this.closed = true;
    document.removeEventListener("visibilitychange", this.onvisible);
    this.abort?.abort();
  }

  visible() {
    clearTimeout(this.hiding);
    if (document.hidden) this.hiding = setTimeout(() => this.abort?.abort(), HIDDEN_MS);
    else this.wake?.();
  }

  async run() {
    while (!this.closed) {
      if (document.hidden) await new Promise((wake) => { this.wake = wake; });
      if (this.closed) return;
      this.abort = new AbortController();
      try {
        const more = this.id ? { "Last-Event-ID": this.id } : {};
        const response = await call(this.path, { headers: headers(more), signal: this.abort.signal });
        this.told("");
        this.pause = FIRST_MS;
        await this.read(response.body.getReader());
      } catch (error) {
        if (this.closed) return;
        if (error.status === 401 || error.status === 404) { this.told(error.message); return; }
        if (error.name !== "AbortError") this.told(error.message || "the connection broke");
      }
      if (this.closed) return;
      await new Promise((wake) => setTimeout(wake, this.pause));
      this.pause = Math.min(2 * this.pause, LONGEST_MS);
    }
  }

  async read(reader) {
    const decoder = new TextDecoder();
    let text = "";
    for (;;) {
      const silent = setTimeout(() => this.abort.abort(), SILENT_MS);
      const { value, done } = await reader.read();
      clearTimeout(silent);
      if (done) throw new ApiError("the dashboard has closed the connection; trying again", 0);
      text += decoder.decode(value, { stream: true });
      const events = text.split("\n\n");
      text = events.pop();
      events.forEach((each) => this.dispatch(each));
    }
  }

  dispatch(event) {
    let name = "message";
    let data = "";
    for (const line of event.split("\n")) {
      if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("id: ")) this.id = line.slice(4);
      else if (line.startsWith("data: ")) data += line.slice(6);
    }
    if (data) this.handlers[name]?.(JSON.parse(data));
  }
}
