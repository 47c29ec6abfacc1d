// A result as a card: the frame of its best second, and below it the time and one short reason.
import { clock, make, nameOf, numberOf, span, whileSeen } from "./common.js";
import { loadPicture, pictureAt, remarkOn, sourceOf } from "./pictures.js";

const GOOD_PERCENT = 25, POSSIBLE_PERCENT = 5;  // of held-out captions that fit less well
const PREVIEW_MS = 400;  // under the pointer, before the moment plays
const WHOLE = 0.9;  // of a video: such a moment is not marked
const UPRIGHT = 1.2;  // width by height; a frame below is shown whole

// How good a match is, in words: beside the moments that held-out captions of these videos find.
export function match({ percent_of_captions: percent }) {
  if (percent === null || percent === undefined) return null;
  return percent >= GOOD_PERCENT ? "good match" : percent >= POSSIBLE_PERCENT ? "possible match" : "weak match";
}

// Why a moment is a result: the caption that has the words, or how good a match the video is, with a dot of a colour.
export function reason(moment) {
  if (moment.found_by !== "video" && moment.caption) return [`“${moment.caption}”`];
  const fits = match(moment);
  return fits ? [make("span", { className: `dot ${fits.split(" ")[0]}` }), fits] : [];
}

// Where in its video a moment lies, or all moments of a video.
function marks(moment) {
  const bar = make("span", { className: "marks" });
  const parts = moment.occurrences?.length ? moment.occurrences : [moment];
  if (parts.length === 1 && parts[0].end_seconds - parts[0].start_seconds > WHOLE * moment.duration_seconds) return "";
  for (const { start_seconds: start, end_seconds: end } of parts) {
    const mark = make("span");
    mark.style.left = `${Math.min(start / moment.duration_seconds, 0.99) * 100}%`;
    mark.style.width = `${Math.max((end - start) / moment.duration_seconds, 0.01) * 100}%`;
    bar.append(mark);
  }
  return bar;
}

function playUnderPointer(frame, moment, dataset) {
  if (moment.shown !== "file" || !matchMedia("(hover: hover)").matches || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  let timer = 0, video = null;
  const stop = () => { clearTimeout(timer); if (video) { video.removeAttribute("src"); video.load(); video.remove(); video = null; } };
  frame.addEventListener("pointerenter", (event) => {
    if (event.pointerType !== "mouse") return;
    timer = setTimeout(() => {
      const { start_seconds: start, end_seconds: end } = moment;
      video = make("video", { muted: true, playsInline: true, tabIndex: -1, attributes: { "aria-hidden": "true" } });
      video.src = sourceOf("video", dataset, moment.video_id);
      video.addEventListener("loadedmetadata", () => { if (video) video.currentTime = start; });
      video.addEventListener("seeked", () => { if (!video) return; video.classList.add("ready"); video.play().catch(stop); });
      video.addEventListener("timeupdate", () => { if (video && video.currentTime >= end) video.currentTime = start; });
      video.addEventListener("error", stop);
      frame.append(video);
    }, PREVIEW_MS);
  });
  frame.addEventListener("pointerleave", stop);
}

export function card(moment, { dataset, address, open, signal }) {
  const image = make("img", { alt: "", draggable: false });
  const frame = make("div", { className: "frame" }, image), remark = make("span", { className: "quiet" });
  const show = (seen) => loadPicture(pictureAt(dataset, moment.video_id, moment.best_seconds), seen).then((picture) => {
    image.addEventListener("load", () => {
      if (image.naturalWidth >= UPRIGHT * image.naturalHeight) return;
      frame.style.backgroundImage = `url("${picture.address}")`;
      frame.classList.add("whole");
    });
    image.src = picture.address;
    remark.textContent = remarkOn(picture, moment.best_seconds);
    frame.classList.add("loaded");
  }, (error) => {
    if (seen.aborted) throw error;
    frame.classList.add("without");
  });
  whileSeen(frame, signal, show);
  const numOccurrences = moment.occurrences?.length ?? 0, numSimilar = moment.similar?.length ?? 0;
  const badges = make("span", { className: "badges" });
  if (numSimilar) badges.append(make("span", { textContent: `+${numSimilar} similar` }));
  if (numOccurrences > 1) badges.append(make("span", { textContent: numberOf(numOccurrences, "moment") }));
  frame.append(badges, make("span", { className: "time", textContent: moment.found_by ? span(moment) : clock(moment.duration_seconds) }));
  if (moment.found_by) frame.append(marks(moment));
  const words = make("span", { className: "why" });
  const why = moment.found_by ? reason(moment) : moment.captions.slice(0, 1);
  words.append(...why);
  const link = make("a", { className: "card", href: address }, frame, words, make("span", { className: "name quiet", textContent: nameOf(moment), title: moment.file_name ? `${moment.file_name} (${moment.video_id})` : moment.video_id }), remark);
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    open();
  });
  playUnderPointer(frame, moment, dataset);
  return make("li", {}, link);
}
