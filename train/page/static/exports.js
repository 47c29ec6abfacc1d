// Taking results along: the menu of files, and clips of a result. A file is fetched first, so that an error is a sentence.
import { Unreachable, byId, make } from "./common.js";

const MAX_LISTED = 1000, MAX_READ = 60;  // moments of a file, as the server allows
const FORMS = [  // of a file, its name in the menu, and whether the server reads each video for it
  ["csv", "Spreadsheet (CSV)", false], ["json", "JSON", false], ["m3u8", "Playlist for VLC (M3U8)", false],
  ["vtt", "Chapters (WebVTT)", false], ["srt", "Subtitles (SRT)", false],
  ["edl", "Editor: EDL (CMX3600)", true], ["fcpxml", "Editor: Final Cut Pro (FCPXML)", true], ["otio", "Editor: OpenTimelineIO", true],
  ["jpg", "Contact sheet (JPEG)", true],
];
const menu = byId("export"), list = menu.querySelector("ul"), state = menu.querySelector("[role=status]");
const NAME = /filename="([^"]+)"/;

// Fetches a file and saves it under the server's name for it; returns a sentence about what is not in it.
async function save(path, parameters) {
  const answer = await fetch(`${path}?${new URLSearchParams(parameters)}`).catch(() => { throw new Unreachable("the server cannot be reached"); });
  if (!answer.ok) {
    const { detail } = await answer.json().catch(() => ({}));
    throw new Error(typeof detail === "string" ? detail : `the server answered ${answer.status}`);
  }
  const link = make("a", { download: NAME.exec(answer.headers.get("content-disposition") ?? "")?.[1] ?? "" });
  link.href = URL.createObjectURL(await answer.blob());
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  const missing = Number(answer.headers.get("moments-missing") ?? 0);
  return `Saved ${link.download}${missing ? `, without ${missing} that could not be read` : ""}.`;
}

function saver(label, name, tell, path, parametersOf) {
  const button = make("button", { type: "button", textContent: label, attributes: name ? { "aria-label": name } : {} });
  button.addEventListener("click", async () => {
    if (button.ariaDisabled === "true") return;
    button.ariaDisabled = "true";  // it keeps the focus
    tell(`Preparing ${label} …`);
    try { tell(await save(path, parametersOf())); }
    catch (error) { tell(`Not saved: ${error.message}`); }
    finally { button.ariaDisabled = "false"; }
  });
  return button;
}

// Offers what is shown as files. ``shown`` returns the parameters of the search and the number of its results.
export function listen(shown) {
  list.append(...FORMS.map(([form, label, isRead]) => make("li", {}, saver(label, "", (text) => { state.textContent = text; }, "/api/export", () => {
    const { parameters, count } = shown();
    return [...parameters, ["form", form], ["num_results", Math.min(count, isRead ? MAX_READ : MAX_LISTED)]];
  }))));
  const close = () => { menu.open = false; };
  addEventListener("keydown", ({ key }) => {
    if (key !== "Escape" || !menu.open) return;
    close();
    menu.querySelector("summary").focus();
  });
  menu.addEventListener("focusout", ({ relatedTarget }) => { if (relatedTarget && !menu.contains(relatedTarget)) close(); });
  addEventListener("click", ({ target }) => { if (!menu.contains(target)) close(); });
  menu.addEventListener("toggle", () => {
    const { count } = shown();
    state.textContent = count > MAX_READ ? `Editor files and contact sheets have the first ${MAX_READ} of the ${Math.min(count, MAX_LISTED)} results.` : "";
  });
}

export function showMenu(isShown) {
  menu.hidden = !isShown;
  if (!isShown) menu.open = false;
}

// Buttons that save a result as a clip, and what becomes of it.
export function clipButtons(moment, dataset) {
  const told = make("p", { className: "quiet", attributes: { role: "status" } });
  const { video_id: id, start_seconds: start, end_seconds: end } = moment;
  const clip = (label, name, exact) => saver(label, name, (text) => { told.textContent = text; }, "/media/cut", () => ({ ...dataset, video_id: id, start, end, exact }));
  const buttons = make("div", { className: "buttons" },
    clip("Save clip", `Save a clip of ${id}, encoded again and exact to the frame`, true),
    clip("Save copied clip", `Save a clip of ${id}, copied without loss from the key frame before`, false));
  return [buttons, told];
}
