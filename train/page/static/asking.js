// What is asked: a text, examples and filters. The address of the page has all of it, so that a link shows the same.
import { ask, byId, make } from "./common.js";
import { pictureAt } from "./pictures.js";

const form = byId("form"), panel = byId("filters"), examples = byId("examples");
const FILTERS = [...panel.querySelectorAll("select, input")].map((field) => field.name);
const NAMES = {  // of the filters in use, beside their values
  without: "without", caption: "caption has", folder: "folder", caption_language: "captions in", split: "split", has_caption: "videos",
  by: "look in", since: "from", until: "to", min_seconds: "at least", max_seconds: "at most", group: "show", fold: "near duplicates", dataset: "data set",
};
const EXAMPLE = /^(.+)@(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)$/s;
const FIRST_DATE = "1971";  // a year that is still being typed is earlier
let go = () => {}, fail = () => {}, tell = () => {};

// Reads the address. Links of older pages have an example's times beside it.
export function asked() {
  const given = new URLSearchParams(location.search);
  const found = new URLSearchParams();
  if ((given.get("q") ?? "").trim()) found.set("q", given.get("q").trim());
  for (const example of given.getAll("like")) found.append("like", given.has("start") ? `${example}@${given.get("start")}-${given.get("end") ?? 0}` : example);
  for (const name of FILTERS) if (given.get(name)) found.set(name, given.get(name));
  return found;
}

export function isEmpty(parameters) {
  return !parameters.has("q") && !parameters.has("like");
}

export function datasetOf(parameters) {
  return parameters.has("dataset") ? { dataset: parameters.get("dataset") } : {};
}

function fromForm() {
  const found = new URLSearchParams();
  if (byId("q").value.trim()) found.set("q", byId("q").value.trim());
  for (const example of asked().getAll("like")) found.append("like", example);
  for (const name of FILTERS) {
    const field = panel.querySelector(`[name=${name}]`);
    if (field.value && !(name === "dataset" && field.selectedIndex === 0)) found.set(name, field.value);
  }
  return found;
}

// An address with another text and other examples, and the filters that are in use.
export function withOther(changes) {
  const found = asked();
  for (const [name, values] of Object.entries(changes)) {
    found.delete(name);
    for (const value of values) found.append(name, value);
  }
  return found;
}

export function addExample(example) {
  go(withOther({ like: [...new Set([...asked().getAll("like"), example])], by: [] }));  // captions have no pictures
}

// A button that removes a part of what is asked, and leads back to the text.
function removeButton(name, changes) {
  const button = make("button", { type: "button", textContent: "×", attributes: { "aria-label": `Remove the ${name}` } });
  button.addEventListener("click", () => { go(withOther(changes)); byId("q").focus(); });
  return button;
}

function exampleChip(example, parameters) {
  const isPicture = /^picture:[0-9a-f]{32}$/.test(example), [, videoId, start, end] = EXAMPLE.exec(example) ?? [null, example, "0", "0"];
  const image = make("img", { alt: "" });
  image.src = isPicture ? `/media/example?picture=${encodeURIComponent(example.slice("picture:".length))}`
    : pictureAt(datasetOf(parameters), videoId, (Number(start) + Number(end)) / 2);
  const name = isPicture ? "your image" : videoId;
  const others = parameters.getAll("like").filter((other) => other !== example);
  return make("li", { title: example }, image, make("span", { textContent: name }), removeButton(`example ${name}`, { like: others }));
}

function filterChip(name, value) {
  const field = panel.querySelector(`[name=${name}]`);
  const shown = field.tagName === "SELECT" && name !== "dataset" ? field.selectedOptions[0]?.textContent ?? value : value;
  const unit = name.endsWith("_seconds") ? " s" : "";
  return make("li", {}, make("span", { textContent: `${NAMES[name]} ${shown}${unit}` }), removeButton(`filter ${NAMES[name]} ${shown}`, { [name]: [] }));
}

// Shows what the address asks for; returns the name of a data set that this page does not have.
export function showAsked(parameters, typed = "") {
  byId("q").value = parameters.get("q") ?? typed;
  examples.replaceChildren(...parameters.getAll("like").map((example) => exampleChip(example, parameters)));
  let unknown = null;
  for (const name of FILTERS) {
    const field = panel.querySelector(`[name=${name}]`), value = parameters.get(name) ?? "";
    field.value = value;
    if (field.tagName !== "SELECT" || field.selectedIndex >= 0) continue;
    if (name === "dataset" || !value) field.selectedIndex = 0;
    else field.append(new Option(value, value, false, true));  // the server says what it thinks of it
    if (name === "dataset" && value && field.length) unknown = value;
  }
  const used = FILTERS.filter((name) => parameters.has(name) && (name !== "dataset" || unknown));
  byId("chosen").replaceChildren(...used.map((name) => filterChip(name, parameters.get(name))));
  byId("more").classList.toggle("used", used.length > 0);
  return unknown;
}

// Fills the menus with what the data sets have.
export function showChoices(datasets) {
  const choices = {
    dataset: datasets.map(({ name }) => name),
    split: [...new Set(datasets.flatMap(({ splits }) => splits))],
    folder: [...new Set(datasets.flatMap(({ folders }) => folders ?? []))],
    caption_language: [...new Set(datasets.flatMap(({ languages }) => languages ?? []))],
  };
  for (const [name, values] of Object.entries(choices)) {
    const field = panel.querySelector(`[name=${name}]`);
    field.replaceChildren(...(name === "dataset" ? [] : [new Option("any", "")]), ...values.map((value) => new Option(value, value)));
    panel.querySelector(`[data-choices=${name}]`).hidden = values.length < (name === "split" ? 1 : 2);
  }
}

function openPanel(isOpen) {
  panel.hidden = !isOpen;
  byId("more").setAttribute("aria-expanded", String(isOpen));
}

async function upload(file) {
  tell("Sending the image …");
  try {
    const { picture } = await ask("/api/pictures", {}, { method: "POST", body: file, headers: { "Content-Type": "application/octet-stream" } });
    addExample(`picture:${picture}`);
  } catch (error) { fail(error); }
}

function uploadPicture(file) {
  if (file.type.startsWith("image/")) upload(file);
  else fail(new Error(`${file.name} is not an image; expected a photo, such as a JPEG or PNG`));
}

// Lets people ask; ``then`` gets the parameters of what they ask for, ``failed`` an error of a picture, ``say`` a text.
export function listen(then, failed, say) {
  [go, fail, tell] = [then, failed, say];
  form.addEventListener("submit", (event) => { event.preventDefault(); go(fromForm()); });
  panel.addEventListener("change", ({ target }) => {
    if (target.type !== "date" || !target.value || target.value >= FIRST_DATE) go(fromForm());
  });
  byId("more").addEventListener("click", () => openPanel(panel.hidden));
  byId("done").addEventListener("click", () => {
    openPanel(false);
    byId("more").focus({ preventScroll: true });
    byId("line").scrollIntoView();
  });
  byId("choose").addEventListener("click", () => byId("file").click());
  byId("file").addEventListener("change", () => {
    const [file] = byId("file").files;
    if (file) uploadPicture(file);
    byId("file").value = "";
  });
  addEventListener("paste", (event) => {
    const file = [...event.clipboardData?.files ?? []].find(({ type }) => type.startsWith("image/"));
    if (file && !event.clipboardData.types.includes("text/plain")) { event.preventDefault(); upload(file); }
  });
  const drop = byId("drop"), hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragenter", (event) => { if (hasFiles(event)) { event.preventDefault(); drop.hidden = false; } });
  drop.addEventListener("dragleave", () => { drop.hidden = true; });
  addEventListener("dragover", (event) => { if (hasFiles(event)) event.preventDefault(); });
  addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    drop.hidden = true;
    const files = [...event.dataTransfer.files];
    uploadPicture(files.find(({ type }) => type.startsWith("image/")) ?? files[0]);
  });
}
