// What all parts of the page use. Text from the data set is only ever set as text.
const MINUTE = 60, HOUR = 3600;
const SHORT_SECONDS = 3;  // of a moment whose times have a decimal

export const byId = (id) => document.getElementById(id);

export function make(name, properties = {}, ...children) {
  const { attributes = {}, ...own } = properties;
  const element = Object.assign(document.createElement(name), own);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
  element.append(...children);
  return element;
}

export function drawn(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
  element.append(...children);
  return element;
}

export function numberOf(count, thing) {
  return `${count.toLocaleString("en")} ${thing}${count === 1 ? "" : "s"}`;
}

// 75.25 with one digit: "1:15.3"
export function clock(seconds, digits = 0) {
  const rounded = Number(seconds.toFixed(digits));
  const hours = Math.floor(rounded / HOUR), minutes = Math.floor(rounded % HOUR / MINUTE);
  const rest = (rounded % MINUTE).toFixed(digits).padStart(digits ? digits + 3 : 2, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

export function span({ start_seconds: start, end_seconds: end }) {
  const digits = end - start < SHORT_SECONDS ? 1 : 0;
  if (digits && end < MINUTE) return `${start.toFixed(1)} – ${end.toFixed(1)} s`;
  return `${clock(start, digits)} – ${clock(end, digits)}`;
}

// What people call a video: its file, where that was renamed, else its id.
export function nameOf({ video_id: id, file_name: name }) {
  return name ?? id;
}

export class Unreachable extends Error {}

const unreachable = (error) => {
  if (error.name === "AbortError") throw error;
  throw new Unreachable("the server cannot be reached; if it has stopped, start vlalign-serve again and open the address that it prints");
};

export async function ask(path, parameters, options = {}) {
  const answer = await fetch(`${path}?${new URLSearchParams(parameters)}`, options).catch(unreachable);
  if (answer.ok) return answer.json().catch(unreachable);
  const content = await answer.json().catch(() => ({}));
  const detail = content.detail;
  throw new Error(typeof detail === "string" ? detail : detail?.[0]?.msg ?? `the server answered ${answer.status}`);
}

// Calls ``enter`` with a signal while an element is seen or nearly so, again each time until what it returns is done.
export function whileSeen(element, signal, enter) {
  let inside = null;
  const observer = new IntersectionObserver((entries) => {
    if (!entries.at(-1).isIntersecting) { inside?.abort(); inside = null; return; }
    if (inside || signal.aborted) return;
    inside = new AbortController();
    enter(inside.signal).then(() => observer.disconnect(), () => {});
  }, { rootMargin: "200px" });
  observer.observe(element);
  signal.addEventListener("abort", () => { inside?.abort(); observer.disconnect(); });
}
