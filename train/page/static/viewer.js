// The viewer of a result: its video at the second, the time line, what found it, and what to ask next.
import { ask, byId, clock, make, nameOf, numberOf, span } from "./common.js";
import { reason } from "./cards.js";
import { clipButtons } from "./exports.js";
import { sourceOf } from "./pictures.js";
import { player } from "./player.js";
import { timeline } from "./timeline.js";

const FOUND_BY = { video: "the video", text: "the text of a caption", both: "the video and the text of a caption" };
const MAX_CUT_SECONDS = 120;  // of a clip to keep, as the server allows
const BY_PAGE = "by the page";
const dialog = byId("viewer");
let showing = new AbortController();

export function closeViewer() {
  showing.abort();
  if (dialog.open) dialog.close(BY_PAGE);
  dialog.replaceChildren();
}

// A word of the query is lit while it fits the second that is shown: above the middle between its best and its median.
function wordButton(word, curve, seek) {
  const sorted = [...curve.scores].sort((a, b) => a - b);
  const high = sorted[sorted.length - 1], limit = (high + sorted[Math.floor((sorted.length - 1) / 2)]) / 2;
  const best = curve.start_seconds[curve.scores.indexOf(high)];
  const button = make("button", { type: "button", className: "word", textContent: word, attributes: { "aria-label": `${word}: fits best at ${clock(best, 1)}; go there` } });
  button.addEventListener("click", () => { seek(best); button.lightAt(best); });
  button.lightAt = (seconds) => {
    const row = curve.start_seconds.findLastIndex((start) => start <= seconds + 0.001);
    button.classList.toggle("lit", row >= 0 && curve.scores[row] >= limit);
  };
  return button;
}

function facts(moment) {
  const list = make("dl");
  const fact = (name, value) => list.append(make("dt", { textContent: name }), make("dd", { textContent: value }));
  fact("Length of the video", clock(moment.duration_seconds, 1));
  if (!moment.found_by) return list;
  fact("Found by", FOUND_BY[moment.found_by]);
  fact("Score", moment.score.toFixed(3));
  for (const [stage, score] of Object.entries(moment.stages ?? {})) fact(`Score of stage ${stage}`, score.toFixed(3));
  if (moment.percent_of_captions !== null && moment.percent_of_captions !== undefined) fact("Higher than", `${moment.percent_of_captions.toFixed(1)} % of the best scores of held-out captions`);
  if (moment.percentile !== null) fact("Search windows that fit less", `${moment.percentile.toFixed(2)} %`);
  return list;
}

// Copies the address of the page, which is that of the result. Browsers allow it on this machine, and where there is HTTPS.
function copyLink() {
  const button = make("button", { type: "button", textContent: "Copy link", attributes: { "aria-live": "polite" } });
  const say = (text) => () => { button.textContent = text; };
  button.addEventListener("click", () => navigator.clipboard.writeText(location.href).then(say("Copied"), say("Not copied")));
  return button;
}

function action(label, name, then) {
  const button = make("button", { type: "button", textContent: label, attributes: { "aria-label": name } });
  button.addEventListener("click", then);
  return button;
}

// Shows a result. The actions are those of the page: {step, close, like, addExample}.
export function openViewer(moment, { query, dataset, position, actions }) {
  showing.abort();
  showing = new AbortController();
  const { signal } = showing;
  const { view, seek, watch, remark, plays } = player(moment, dataset, signal);
  const line = timeline(moment, dataset, seek, signal);
  const words = make("div", { className: "buttons query-words" });
  const light = (seconds) => { for (const button of words.children) button.lightAt(seconds); };
  const part = span(moment), why = moment.found_by ? reason(moment) : [];
  const close = action("×", "Close", actions.close), buttons = make("div", { className: "buttons" });
  close.className = "close";
  const download = make("a", { className: "button", textContent: "Download video", download: moment.file_name ?? moment.video_id.split("/").at(-1) });
  download.href = sourceOf("video", dataset, moment.video_id);
  if (plays) {
    const play = action(moment.found_by ? "Play moment" : "Play from the start", `Play ${moment.video_id} from ${part}`, () => seek(moment.start_seconds, moment.end_seconds));
    watch((seconds) => { line.moveTo(seconds); light(seconds); }, () => { play.replaceWith("This video cannot be played here."); download.remove(); });
    play.className = "main";
    buttons.append(play);
  }
  const example = `${moment.video_id}@${moment.start_seconds}-${moment.end_seconds}`;
  buttons.append(action("More like this", `More like ${moment.video_id}, ${part}`, () => actions.like(example)),
    action("Add as example", `Add ${moment.video_id}, ${part}, as example`, () => actions.addExample(example)));
  if (navigator.clipboard) buttons.append(copyLink());
  if (moment.shown === "file") buttons.append(download);
  const about = make("div", { className: "about" },
    make("h2", { id: "viewer-name", tabIndex: -1, textContent: nameOf(moment) }),
    make("p", { className: "quiet", textContent: moment.file_name ? `Video ${moment.video_id}` : "" }),
    make("p", {}, make("b", { textContent: part }), " ", ...why), remark, words, buttons);
  if (plays && moment.found_by && moment.end_seconds - moment.start_seconds <= MAX_CUT_SECONDS) about.append(...clipButtons(moment, dataset));
  const captions = [...new Set(moment.captions)].filter((caption) => !moment.found_by || caption !== moment.caption);
  if (captions.length) about.append(make("h3", { textContent: "Captions here" }), make("ul", {}, ...captions.map((caption) => make("li", { textContent: caption }))));
  if (moment.occurrences?.length > 1) {
    about.append(make("h3", { textContent: numberOf(moment.occurrences.length, "moment") }), make("div", { className: "buttons" },
      ...moment.occurrences.map((other) => action(clock(other.start_seconds, 1), `Go to ${clock(other.start_seconds, 1)}`, () => { seek(other.start_seconds, other.end_seconds); line.moveTo(other.start_seconds); }))));
  }
  if (moment.similar?.length) {
    about.append(make("h3", { textContent: "Nearly the same" }), make("ul", {}, ...moment.similar.map((other) => {
      const item = make("li");
      item.append(action(`${nameOf(other)}, ${span(other)}`, `Show ${nameOf(other)}, ${span(other)}`, () => actions.show(other)));
      return item;
    })));
  }
  about.append(make("details", {}, make("summary", { textContent: "Details" }), facts(moment)));
  const steps = make("div", { className: "steps" });
  if (position) {
    const [previous, next] = [action("‹ Previous", "Previous result", () => actions.step(-1)), action("Next ›", "Next result", () => actions.step(1))];
    previous.disabled = position.isFirst;
    next.disabled = position.isLast;
    steps.append(previous, make("span", { className: "quiet", textContent: position.text }), next);
  }
  dialog.replaceChildren(make("div", { className: "stage" }, view), line, about, make("div", { className: "top" }, steps, close));
  dialog.returnValue = "";
  if (!dialog.open) dialog.showModal();
  byId("viewer-name").focus();
  if (plays && moment.shown === "file") view.preload = "metadata";
  if (!query) return;
  ask("/api/word_curves", { ...dataset, q: query, video_id: moment.video_id }, { signal }).then((fits) => {
    if (fits.length) words.before(make("h3", { textContent: "Words of the query; highlighted where they match" }));
    words.append(...fits.map(({ word, curve }) => wordButton(word, curve, seek)));
    light(moment.best_seconds);
  }).catch(() => {});  // the moment is shown without them
  ask("/api/score_curve", { ...dataset, q: query, video_id: moment.video_id }, { signal }).then(line.showScores).catch(() => {});
}

// The page leaves the viewer, and then closes it.
const leave = () => dialog.dispatchEvent(new Event("leave"));
dialog.addEventListener("cancel", (event) => { event.preventDefault(); leave(); });
dialog.addEventListener("close", () => { if (dialog.returnValue !== BY_PAGE) leave(); });  // as after a second Escape
dialog.addEventListener("click", (event) => { if (event.target === dialog) leave(); });
